'use strict';
// Used by all other files: creates elements, formats numbers, and stores the data of the runs.

const $ = id => document.getElementById(id);
/** Creates an element. Attributes that are functions become listeners. Strings among the children become text nodes. */
function make(tag, attributes = {}, ...children) {
  const isSvg = ['svg', 'path', 'line', 'text', 'circle'].includes(tag);
  const element = isSvg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name, value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(2).filter(child => child != null));
  return element;
}
const last = list => list[list.length - 1];
const sum = list => list.reduce((a, b) => a + b, 0);

// ---- format numbers ----
const isNumber = x => typeof x === 'number' && isFinite(x);
const ifNumber = (x, format) => isNumber(x) ? format(x) : '\u2013';
const count = x => ifNumber(x, v => Math.round(v).toLocaleString('en'));
const percent = x => ifNumber(x, v => (100 * v).toFixed(1) + '\u00a0%');
const digits = x => ifNumber(x, v => v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5) ?
  v.toExponential(2) : String(+v.toPrecision(4)));
const memory = x => ifNumber(x, v => v < 2 ** 20 ? (v / 2 ** 10).toFixed(1) + ' KiB' :
  (v / 2 ** 20).toFixed(1) + ' MiB');
const seconds = x => ifNumber(x, v => v < 100 ? v.toPrecision(3) + ' s' : v < 6000 ? (v / 60).toFixed(1) + ' min' :
  (v / 3600).toFixed(1) + ' h');

// ---- colours: 8 fixed ones, then hues at the golden angle ----
const color = i => i < 8 ? `var(--c${i})` : `hsl(${Math.round(i * 137.508) % 360} 50% 55%)`;
const swatch = i => make('span', {class: 'swatch', style: `--color: ${color(i)}`});

// ---- runs ----
const runs = new Map(); // by name; `shown` is true if the curves of the run are drawn
let chosen = null; // name of the run whose parts are shown
let sweep = null; // the sweep, if the runs are its trials
function runOf(name) {
  if (!runs.has(name)) runs.set(name, {name, state: '', shown: false, steps: [], epochs: [], config: {}});
  return runs.get(name);
}
const shownRuns = () => [...runs.values()].filter(run => run.shown);
const label = run => sweep ? 'trial ' + run.name : run.name;
const option = (run, name) => run.config?.options?.[name];

/** Renames the metrics of a validation set like those of a test set. */
const asTest = line =>
  Object.fromEntries(Object.entries(line).map(([key, value]) => [key.replace(/^validation_/, 'test_'), value]));
/** Returns the name of the set that these runs are tested on, or 'test' if they differ. Only started runs have it. */
const testSetName = (...list) => {
  const sets = [...new Set(list.map(run => run.tested).filter(Boolean))];
  return sets.length === 1 ? sets[0] : 'test';
};
function addLines(run, lines) {
  for (const line of lines) {
    if ('step' in line) run.steps.push(line);
    else if ('epoch' in line) run.epochs.push({...asTest(line), last_step: last(run.steps)?.step});
  }
}
/** Copies the members of a report into the run. */
function mergeReport(run, report) {
  const {metrics, epochs, ...rest} = report;
  Object.assign(run, rest, {epochs_planned: epochs});
  if (metrics) run.steps = [], run.epochs = [], addLines(run, metrics);
}
const lastEpoch = run => last(run.epochs) ?? (run.last && asTest(run.last));
const best = (run, key) => Math.max(...run.epochs.map(line => line[key]).filter(isNumber));

/** Returns the number of steps per epoch, or Infinity if it is unknown. It gives the position of a step on the axis. */
const perEpoch = run => run.steps_per_epoch || last(run.epochs)?.last_step / last(run.epochs)?.epoch || Infinity;
const points = (run, list, key) => {
  const steps = perEpoch(run);
  return list.map(line =>
    ['step' in line ? steps === Infinity ? line.step : line.step / steps : line.epoch, line[key]]);
};
/** Returns at most 400 points: averages of consecutive ones if there are more. */
function averaged(all) {
  const n = Math.ceil(all.length / 400);
  if (n <= 1) return all;
  const out = [];
  for (let i = 0; i < all.length; i += n) {
    const group = all.slice(i, i + n), values = group.map(p => p[1]);
    out.push([last(group)[0], values.every(isNumber) ? sum(values) / group.length : null]);
  }
  return out;
}
