// Measures ONNX Runtime: node onnxruntime.js NET.onnx BATCH SIZE THREADS SECONDS [CHANNELS]
// Prints the median of the milliseconds per call for random images [BATCH CHANNELS SIZE SIZE], by default of 3 channels.
// See vs_onnxruntime.py.
const ort = require('onnxruntime-node');

async function main() {
  const [batch, size, threads, seconds, channels = 3] = process.argv.slice(3).map(Number);
  const session = await ort.InferenceSession.create(process.argv[2], {
    executionProviders: ['cpu'], graphOptimizationLevel: 'all', intraOpNumThreads: threads, interOpNumThreads: 1});
  const values = Float32Array.from({length: batch * channels * size * size}, () => 2 * Math.random() - 1);
  const feeds = {[session.inputNames[0]]: new ort.Tensor('float32', values, [batch, channels, size, size])};
  const call = async () => {
    const begin = process.hrtime.bigint();
    await session.run(feeds);
    return Number(process.hrtime.bigint() - begin) / 1e6;
  };
  for (let i = 0; i < 3; ++i) await call();
  const times = [];
  for (let total = 0; total < 1e3 * seconds || times.length < 5; total += times.at(-1)) times.push(await call());
  times.sort((a, b) => a - b);
  console.log(times[times.length >> 1].toFixed(3));
}

main();
