// Runs the networks of a folder that onnx_networks has written in ONNX Runtime. Writes each output beside them, as
// NAME.got.0 and so on, and prints {NAME: {"inputs": [names], "outputs": [names], "extents": [[...], ...]}}.
const fs = require('fs');
const onnx = require('onnxruntime-node');

async function main(folder) {
  const report = {};
  for (const network of JSON.parse(fs.readFileSync(`${folder}/networks.json`))) {
    const path = `${folder}/${network.name}`;
    const session = await onnx.InferenceSession.create(`${path}.onnx`);
    const feeds = {};
    for (const [i, name] of session.inputNames.entries()) {
      const bytes = fs.readFileSync(`${path}.in.${i}`);
      const values = new Float32Array(new Uint8Array(bytes).buffer); // a copy, which is aligned
      feeds[name] = new onnx.Tensor('float32', values, network.inputs[i]);
    }
    const results = await session.run(feeds);
    const outputs = session.outputNames.map(name => results[name]);
    for (const [i, y] of outputs.entries()) {
      fs.writeFileSync(`${path}.got.${i}`, new Uint8Array(y.data.buffer, y.data.byteOffset, y.data.byteLength));
    }
    report[network.name] = {inputs: session.inputNames, outputs: session.outputNames, extents: outputs.map(y => y.dims)};
  }
  console.log(JSON.stringify(report));
}

main(process.argv[2]).catch(error => { console.error(error.message); process.exit(1); });
