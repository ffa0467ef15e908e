'use strict';
// Used by all other files: creates elements, formats numbers, and stores the data of the runs.

const $ = id => document.getElementById(id);
/** Creates an element. Attributes that are functions become listeners. Strings among the children become text nodes. */
function make(tag, attributes = {}, ...children) {
  const isSvg = ['svg', 'path', 'line', 'rect', 'text', 'circle'].includes(tag);
  const element = isSvg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name, value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter(child => child != null));
  return element;
}
const last = list => list[list.length - 1];
const sum = list => list.reduce((a, b) => a + b, 0);

// ---- format numbers ----
const isNumber = x => typeof x === 'number' && isFinite(x);
const isText = x => typeof x === 'string';
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
let sweep = null; // the sweep that the page shows, or null if its runs are not trials
function runOf(name) {
  if (!runs.has(name)) runs.set(name, {name, state: '', shown: false, ...noLines(), config: {}});
  return runs.get(name);
}
const shownRuns = () => [...runs.values()].filter(run => run.shown);
const label = run => sweep ? 'trial ' + run.name : run.name;
const option = (run, name) => run.config?.options?.[name];
/** Returns the names of all options of these runs. */
const optionNames = list => [...new Set(list.flatMap(run => Object.keys(run.config?.options ?? {})))];
/** Shows the curves and the parts of a run. */
const chooseRun = run => (run.shown = true, chosen = run.name, update(), poll?.());
/** Returns the metrics that a run's config.json names, with unit and direction, the main one first. */
const metricsOf = run => Array.isArray(run?.config?.metrics) ?
  run.config.metrics.filter(metric => isText(metric?.name) && metric.name && isText(metric.unit ?? '')) : [];
/** Returns metricsOf(run), and before them the loss, unless it is one of them or the run's lines have none. */
function quantitiesOf(run) {
  const known = latest(run) ?? last(run.steps), hasLoss = !known || Object.keys(known).some(key => key.endsWith('loss'));
  return !hasLoss || metricsOf(run).some(({name}) => name === 'loss') ? metricsOf(run) :
    [{name: 'loss'}, ...metricsOf(run)];
}
/** Returns the quantities of several runs, which may differ. */
const quantitiesOfAll = list => [...new Map(list.flatMap(quantitiesOf).map(one => [one.name, one])).values()];
const mainMetric = run => metricsOf(run)[0] ?? {name: 'loss'};
const metricText = metric => metric.unit === '%' ? percent :
  x => ifNumber(x, v => digits(v) + (metric.unit ? '\u00a0' + metric.unit : ''));
const spaced = name => name.replace(/_/g, ' ');
let colorsUsed = 0;
/** Returns the number of a run's colour, for color(). A run gets it in the first call, and keeps it. */
const colorOf = run => run.color ??= colorsUsed++;

/** Returns a line of metrics with the metrics of a validation set renamed to those of a test set. */
const asTest = line =>
  Object.fromEntries(Object.entries(line).map(([key, value]) => [key.replace(/^validation_/, 'test_'), value]));
/** Returns the name of the set that these runs are tested on, or 'test' if they have several names or none. */
const testSetName = (...list) => {
  const sets = [...new Set(list.map(run => run.tested).filter(Boolean))];
  return sets.length === 1 ? sets[0] : 'test';
};
/**
 * Returns the members of a run for its lines of metrics, all empty: lists of the lines of steps, of epochs and of tests
 * (in an epoch or after it), and by name the lines at the end of the run. `latest` has the last value of each member in
 * the lines of epochs, or of steps if the run has no epochs.
 */
const noLines = () => ({steps: [], epochs: [], tests: [], ends: {}, latest: null});
const MAX_STEPS = 8000; // lines of steps per run that the page keeps; if there are more, it drops every second one
function addLines(run, lines) {
  for (const line of lines) {
    const test = asTest(line), isTest = Object.keys(test).some(key => key.startsWith('test_'));
    if (!('step' in line) && !('epoch' in line)) {
      if (isText(line.end)) run.ends[line.end] = test;
      continue;
    }
    if (!('step' in line && 'epoch' in line)) run.latest = Object.assign(run.latest ?? {}, test);
    if (!('step' in line)) run.epochs.push(Object.assign(test, {last_step: last(run.steps)?.step}));
    else if (!isTest || quantitiesOf(run).some(({name}) => name in line)) run.steps.push(line);
    if (isTest) run.tests.push(test);
  }
  if (run.steps.length > MAX_STEPS) run.steps = run.steps.filter((_, i, all) => i % 2 || i === all.length - 1);
  run.computed = null;
}
/** Copies the members of a report (a RUN of models/run/report.h) into the run. */
function mergeReport(run, report) {
  const {metrics, epochs, steps, ...rest} = report;
  Object.assign(run, rest, {epochs_planned: epochs, steps_planned: steps});
  if (metrics) addLines(Object.assign(run, noLines()), metrics);
  run.computed = null;
}
/** Returns the result of make(), and stores it in the run until the run's data or the view change. */
function computed(run, key, make) {
  run.computed ??= new Map();
  if (!run.computed.has(key)) run.computed.set(key, make());
  return run.computed.get(key);
}
const latest = run => run.latest ?? (run.last && asTest(run.last));
/**
 * Returns the metric that ranks a run: that of --rank-by for a sweep and its trials, else the main one on the test set,
 * or in training if the run has no values of a test. `key` is its name in a line of an epoch, `title` its name for
 * people.
 */
function rankingOf(run) {
  const by = run?.rank_by ?? sweep?.rank_by, main = mainMetric(run), known = (run && latest(run)) ?? {};
  if (isText(by?.name))
    return {...by, key: by.name.replace(/^validation_/, 'test_'), title: spaced(by.name)};
  const sets = [['test_', testSetName(run ?? {}) + ' '], ['train_', 'training '], ['', '']];
  const [prefix, set] = sets.find(one => one[0] + main.name in known) ?? sets[0];
  return {...main, key: prefix + main.name, title: set + spaced(main.name)};
}
/**
 * Returns the best value of the metric that ranks a run, over all epochs, or all tests of a run without epochs; for a
 * sweep, that of its best trial.
 */
function best(run) {
  const {key, higher_is_better: higher} = rankingOf(run), choose = higher ? Math.max : Math.min;
  const lines = run.epochs.length ? run.epochs : run.tests;
  return lines.length || !isNumber(run.best) ? choose(...lines.map(line => line[key]).filter(isNumber)) : run.best;
}

// ---- time ----
let clockOffset = 0; // seconds by which the clock of the monitor is ahead of the browser's
const now = () => Date.now() / 1000 + clockOffset;
/** Returns the seconds of all starts of a run, that of the last one until now or until the report was written. */
const elapsed = run => (run.seconds_before ?? 0) + Math.max(0, (run.alive ? now() : run.written) - run.begun);
/** Returns the steps per second of a live run over the last half minute, or NaN while only one time is known. */
function rate(run) {
  const seen = run.progress ?? [];
  return seen.length > 1 ? (last(seen).step - seen[0].step) / (last(seen).time - seen[0].time) : NaN;
}
function noteProgress(run) {
  const step = last(run.steps)?.step, time = now();
  if (!isNumber(step)) return;
  run.progress = [...run.progress ?? [], {step, time}].filter(seen => seen.step <= step && seen.time >= time - 30);
}

// ---- points of curves ----
/** Returns the number of steps per epoch, or Infinity if it is unknown. positions() uses it to place steps. */
const perEpoch = run => run.steps_per_epoch || last(run.epochs)?.last_step / last(run.epochs)?.epoch || Infinity;
/**
 * Returns a function that gives the position of a line of metrics on the axis 'epoch', 'step' or 'time' (seconds of
 * training). If the steps per epoch are unknown, the position of a step on the axis 'epoch' is its number.
 */
function positions(run, axis) {
  const steps = perEpoch(run);
  const epochOf = line => 'step' in line ? steps === Infinity ? line.step : line.step / steps : line.epoch;
  if (axis === 'epoch') return epochOf;
  if (axis === 'step') return line => line.step ?? line.last_step ?? line.epoch * steps;
  if (steps === Infinity) return line => line.step * elapsed(run) / last(run.steps)?.step;
  const ends = [0]; // times of the ends of the epochs
  for (const {seconds} of run.epochs) ends.push(last(ends) + (isNumber(seconds) ? seconds : 0));
  const skipped = (run.epochs[0]?.epoch ?? 1) - 1; // number of epochs before the first line
  return line => {
    const epoch = epochOf(line) - skipped, whole = Math.min(Math.floor(epoch), ends.length - 1);
    if (epoch === whole) return ends[whole];
    const next = Math.min(whole + 1, ends.length - 1); // an epoch that is not over is as long as the one before
    return ends[whole] + (epoch - whole) * (next > 0 ? ends[next] - ends[next - 1] : steps / rate(run));
  };
}
const points = (run, list, key, axis) => {
  const position = positions(run, axis);
  return list.filter(line => key in line).map(line => [position(line), line[key]]).filter(p => isNumber(p[0]));
};
/**
 * Returns at most `limit` points. If there are more in `all`, each stands for some consecutive ones: it has the mean of
 * their values, at the position of the last one.
 */
function averaged(all, limit) {
  const n = Math.ceil(all.length / limit);
  if (n <= 1) return all;
  const out = [];
  for (let i = 0; i < all.length; i += n) {
    const group = all.slice(i, i + n), values = group.map(p => p[1]);
    out.push([last(group)[0], values.every(isNumber) ? sum(values) / group.length : null]);
  }
  return out;
}
/**
 * Returns exponential averages: each is `weight` times the one before, plus (1 - weight) times the value. They are
 * corrected for the start at 0.
 */
function smoothed(all, weight) {
  let average = 0, n = 0;
  return all.map(([x, y]) => {
    if (!isNumber(y)) return [x, null];
    average = weight * average + (1 - weight) * y, n++;
    return [x, average / (1 - weight ** n)];
  });
}
