'use strict';
// What all of the page uses: elements, numbers as text, and the runs as they are known so far.

const $ = id => document.getElementById(id);
/** An element with attributes (functions become listeners) and children, of which text stays text. */
function make(tag, attributes = {}, ...children) {
  const drawn = ['svg', 'path', 'line', 'text', 'circle'].includes(tag);
  const element = drawn ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name, value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(2).filter(child => child != null));
  return element;
}
const last = list => list[list.length - 1];
const sum = list => list.reduce((a, b) => a + b, 0);

// ---- numbers as text ----
const isNumber = x => typeof x === 'number' && isFinite(x);
const or = (x, format) => isNumber(x) ? format(x) : '\u2013';
const count = x => or(x, v => Math.round(v).toLocaleString('en'));
const percent = x => or(x, v => (100 * v).toFixed(1) + '\u00a0%');
const digits = x => or(x, v => v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5) ?
  v.toExponential(2) : String(+v.toPrecision(4)));
const memory = x => or(x, v => v < 2 ** 20 ? (v / 2 ** 10).toFixed(1) + ' KiB' : (v / 2 ** 20).toFixed(1) + ' MiB');
const seconds = x => or(x, v => v < 100 ? v.toPrecision(3) + ' s' : v < 6000 ? (v / 60).toFixed(1) + ' min' :
  (v / 3600).toFixed(1) + ' h');

// ---- colours: the first few are chosen, the others go around the circle ----
const color = i => i < 8 ? `var(--c${i})` : `hsl(${Math.round(i * 137.508) % 360} 50% 55%)`;
const swatch = i => make('span', {class: 'swatch', style: `--of: ${color(i)}`});

// ---- runs ----
const runs = new Map(); // by name; shown: its curves are drawn
let chosen = null; // name of the run whose parts are shown
let sweep = null; // what the runs are trials of, if they are
function runOf(name) {
  if (!runs.has(name)) runs.set(name, {name, state: '', shown: false, steps: [], epochs: [], config: {}});
  return runs.get(name);
}
const shownRuns = () => [...runs.values()].filter(run => run.shown);
const label = run => sweep ? 'trial ' + run.name : run.name;
const option = (run, name) => run.config?.options?.[name];

/** A run may be tested on another set than the test set; here its numbers have the same names all the same. */
const asTest = line =>
  Object.fromEntries(Object.entries(line).map(([key, value]) => [key.replace(/^validation_/, 'test_'), value]));
const tested = (...some) => {
  const sets = [...new Set(some.map(run => run.tested).filter(Boolean))]; // those that have not begun say nothing
  return sets.length === 1 ? sets[0] : 'test';
};
function addLines(run, lines) {
  for (const line of lines) {
    if ('step' in line) run.steps.push(line);
    else if ('epoch' in line) run.epochs.push({...asTest(line), last_step: last(run.steps)?.step});
  }
}
/** What a report has, into the run. */
function take(run, report) {
  const {metrics, epochs, ...rest} = report;
  Object.assign(run, rest, {epochs_planned: epochs});
  if (metrics) run.steps = [], run.epochs = [], addLines(run, metrics);
}
const lastEpoch = run => last(run.epochs) ?? (run.last && asTest(run.last));
const best = (run, key) => Math.max(...run.epochs.map(line => line[key]).filter(isNumber));

/** Epochs as a fraction: where a step lies on the axis. */
const perEpoch = run => run.steps_per_epoch || last(run.epochs)?.last_step / last(run.epochs)?.epoch || Infinity;
const points = (run, list, key) => {
  const steps = perEpoch(run);
  return list.map(line =>
    ['step' in line ? steps === Infinity ? line.step : line.step / steps : line.epoch, line[key]]);
};
/** Steps as means over some in a row, so that there are about 400 points however long the run is. */
function thinned(all) {
  const n = Math.ceil(all.length / 400);
  if (n <= 1) return all;
  const out = [];
  for (let i = 0; i < all.length; i += n) {
    const some = all.slice(i, i + n), values = some.map(p => p[1]);
    out.push([last(some)[0], values.every(isNumber) ? sum(values) / some.length : null]);
  }
  return out;
}
