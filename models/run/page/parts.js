'use strict';
// The parts of the page for one run. A function ...Part() makes a part from one member of the data; see
// models/run/report.h.

const part = (title, ...content) => make('section', {}, make('h2', {}, title), content);
const scroll = (label, ...content) =>
  make('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label}, content);
const folded = (title, ...content) => make('details', {}, make('summary', {}, title), content);
function table(head, rows, kind = '') {
  return make('table', {class: kind}, make('thead', {}, make('tr', {}, head.map(h => make('th', {}, h)))),
    make('tbody', {}, rows.map(row => make('tr', {}, row.map(cell => make('td', {}, cell))))));
}
/** Returns a bar with a coloured segment for each length. A length of `whole` would fill the whole width. */
const bar = (lengths, whole, first = 0) => make('div', {class: 'bar'}, lengths.map((n, i) =>
  make('i', {style: `--color: ${color(first + i)}; width: ${(100 * n / whole).toFixed(2)}%`})));

/** Returns the mean of a quantity over the last 20 lines of steps, since a single mini-batch varies much. */
const recent = (run, key) => {
  const values = run.steps.slice(-20).map(line => line[key]);
  return values.length && values.every(isNumber) ? sum(values) / values.length : undefined;
};
/** Returns the tiles of a run. Each has a value and its title. Values that the run does not have are left out. */
function tiles(run) {
  const epoch = last(run.epochs) ?? {}, step = last(run.steps), set = testSetName(run), known = latest(run) ?? {};
  const metric = mainMetric(run), text = metricText(metric), ranking = rankingOf(run);
  const {six_views, best_model, ...ends} = run.ends;
  const steps = run.steps_planned ?? run.epochs_planned * perEpoch(run), isLive = run.alive || run.state === 'running';
  const perSecond = run.alive && rate(run) > 0 ? rate(run) : step?.step / elapsed(run);
  const quantityTiles = ({name, ...of}) => {
    const [train, test] = [known['train_' + name], known['test_' + name]], title = spaced(name), text = metricText(of);
    const isFinite = !step || !(name in step) || isNumber(step[name]);
    const [trained, value] =
      train === undefined ? [title + ', last 20 steps', recent(run, name)] : ['training ' + title, train];
    const hasTestAlone = run.epochs.length && isNumber(test) && name !== 'loss';
    return [hasTestAlone ? null : [trained, isFinite ? text(value) : 'not finite'], [`${set} ${title}`, text(test)]];
  };
  const endTiles = ([end, {end: _, ...values}]) => Object.entries(values).map(([name, x]) =>
    [`${spaced(end)}: ${spaced(name)}`, metricText(metricsOf(run).find(m => name.endsWith(m.name)) ?? {})(x)]);
  return [
    [run.epochs_planned ? `epochs of ${count(run.epochs_planned)} done` : 'epochs done',
      run.epochs_planned || epoch.epoch ? count(epoch.epoch ?? 0) : count(NaN)],
    ['step' + (isFinite(steps) ? ' of ' + count(steps) : ''), count(step?.step)],
    ...quantitiesOf(run).flatMap(quantityTiles),
    ['best ' + ranking.title, metricText(ranking)(best(run))],
    [`${set} ${spaced(metric.name)}, six views`, text(six_views?.['test_' + metric.name])],
    [`test ${spaced(metric.name)} of the best`, text(best_model?.['test_' + metric.name])],
    ...Object.entries(ends).flatMap(endTiles),
    isNumber(epoch.images_per_s) ? ['images/s', count(epoch.images_per_s)] : ['steps/s', digits(perSecond)],
    ['samples/s', count(epoch.samples_per_s)],
    ['elapsed', seconds(elapsed(run))],
    isLive ? ['time left, about', seconds(Math.max(0, steps - step?.step) / perSecond)] :
      ['training time', seconds(sum(run.epochs.map(e => e.seconds)) || NaN)],
    ...Object.entries(run.fields ?? {}).map(([name, x]) =>
      [name, Number.isInteger(x) ? count(x) : isNumber(x) ? digits(x) : isText(x) ? x : JSON.stringify(x), 8]),
  ].filter(one => one && one[1] !== count(NaN)).map(([name, value, room = 10]) =>
    make('div', {class: value.length > room ? 'tile long' : 'tile'}, make('b', {}, value), make('span', {}, name)));
}

function confusionPart(title, {classes, counts,
  images = counts.map(sum), seen = classes.map((_, j) => sum(counts.map(row => row[j]))), total = sum(seen),
  right = sum(counts.map((row, i) => row[i])), left_out}) {
  // Right predictions are blue, wrong ones orange. Wrong ones are few, so their shade grows with the square root of
  // their share.
  const heat = (share, correct) => share > 0 ? `background: rgb(var(--${correct ? 'right' : 'wrong'}) / ` +
    `${(.08 + .5 * (correct ? share : Math.sqrt(share))).toFixed(2)})` : null;
  const cell = (n, whole, correct) =>
    make('td', {class: correct && 'right', style: heat(n / whole, correct)}, n ? String(n) : '');
  const shareCell = (share, correct) => make('td', {style: heat(share, correct)}, percent(share).replace(/\s/, ''));
  const head = make('tr', {}, make('th', {}, 'true \\ predicted'),
    classes.map(name => make('th', {class: 'up', scope: 'col'}, name)),
    make('th', {class: 'sum'}, 'images'), make('th', {scope: 'col'}, 'recall'),
    make('th', {scope: 'col'}, 'missed'));
  const rows = counts.map((row, i) => make('tr', {}, make('th', {scope: 'row'}, classes[i]),
    row.map((n, j) => cell(n, images[i], i === j)),
    make('td', {class: 'sum'}, count(images[i])), shareCell(row[i] / images[i], true),
    shareCell(1 - row[i] / images[i], false)));
  const summary = (name, cells, ...all) => make('tr', {}, make('th', {scope: 'row'}, name), cells, all);
  const foot = [
    summary('predicted', seen.map(n => make('td', {}, count(n))), make('td', {class: 'sum'}, count(total))),
    summary('precision', seen.map((n, j) => shareCell(counts[j][j] / n, true)), make('td', {class: 'sum'}),
      shareCell(right / total, true), shareCell(1 - right / total, false)),
    summary('false', seen.map((n, j) => shareCell(1 - counts[j][j] / n, false)), make('td', {class: 'sum'}))];
  const pairs = counts.flatMap((row, i) => row.map((n, j) => [n, i, j])).filter(([n, i, j]) => n && i !== j)
    .sort((a, b) => b[0] - a[0]).slice(0, 8).map(([n, i, j]) => `${classes[i]} as ${classes[j]} ${n}`);
  return part(`${title}: ${count(right)} of ${count(total)} correct`, scroll('confusion matrix',
    make('table', {class: 'confusion'}, make('thead', {}, head), make('tbody', {}, rows), make('tfoot', {}, foot))),
    left_out ? make('p', {class: 'dim'}, `The ${classes.length} classes with the most mistakes; ` +
      `the table omits the ${count(left_out)} others.`) : null,
    pairs.length ? make('p', {class: 'dim'}, 'Most confused: ' + pairs.join(', ')) : null);
}

function samplesPart(title, {legend, samples}) {
  const keys = legend.map(([name, ...rgb]) =>
    make('span', {class: 'key'}, make('span', {class: 'swatch', style: `--color: rgb(${rgb.map(Number)})`}), name));
  return samples.length ? part(title, make('p', {}, keys), make('div', {class: 'images'},
    samples.map(({name, caption, pictures}) => make('figure', {style: `--n: ${pictures.length}`},
      make('div', {}, pictures.map(png => make('img', {src: 'data:image/png;base64,' + png, alt: caption}))),
      make('figcaption', {}, `${caption}\n${name}`))))) : null;
}

function predictedPart(title, list) {
  const [W, H, left, bottom] = [340, 300, 60, 255];
  const plot = ({name, unit, points}) => {
    const values = points.flat(), low = Math.min(...values), high = Math.max(...values), size = high - low || 1;
    const X = x => left + 10 + (x - low) / size * (W - left - 25);
    const Y = y => bottom - 10 - (y - low) / size * (bottom - 30);
    return make('svg',
      {class: 'chart', viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': `predicted over true ${name}`},
      make('line', {class: 'axis', x1: left, x2: W - 8, y1: bottom, y2: bottom}),
      make('line', {class: 'axis', x1: left, x2: left, y1: 15, y2: bottom}),
      make('text', {class: 'title', x: (left + W) / 2, y: H - 5, 'text-anchor': 'middle'},
        `true ${spaced(name)}${unit ? ', ' + unit : ''}`),
      make('text', {class: 'title', transform: `translate(12 ${bottom / 2}) rotate(-90)`, 'text-anchor': 'middle'},
        'predicted'),
      make('line', {class: 'axis', x1: X(low), y1: Y(low), x2: X(high), y2: Y(high)}),
      [low, high].map(v => [make('text', {x: X(v), y: bottom + 14, 'text-anchor': 'middle'}, digits(v)),
        make('text', {x: left - 5, y: Y(v) + 4, 'text-anchor': 'end'}, digits(v))]),
      points.map(([x, y]) => make('circle', {cx: X(x), cy: Y(y), r: 2.5, fill: 'var(--c0)', opacity: .6})));
  };
  return part(title, make('div', {class: 'plots'}, list.map(plot)));
}

function barsPart({title, unit, groups}) {
  return part(title, groups.flatMap(({name, bars, note}) => [
    make('p', {}, make('b', {}, name), make('span', {class: 'dim'}, note ? ', ' + note : '')),
    scroll(name, table(['', unit, ''], bars.map(([label, value], i) =>
      [make('span', {}, label), digits(value), bar([value], Math.max(...bars.map(b => b[1])), i)]), 'bars'))]));
}

function ranksPart(ranks) {
  const names = [...new Set(ranks.flatMap(r => Object.keys(r.seconds)))];
  const working = r => r.seconds.data + r.seconds.compute + r.seconds.update;
  const slowest = Math.max(...ranks.map(working)), whole = Math.max(...ranks.map(r => sum(Object.values(r.seconds))));
  return part('Ranks: time of the last epoch by phase',
    make('p', {}, names.map((name, i) => make('span', {class: 'key'}, swatch(i), name))),
    scroll('ranks', table(
      ['rank', 'host', 'images', 'images/s without waiting', 'ms per step', ...names.map(n => n + ' s'), ''],
      ranks.map(r => [String(r.rank) + (ranks.length > 1 && working(r) === slowest ? ' (slowest)' : ''), r.host,
        count(r.images), count(r.images / working(r)), digits(1000 * (working(r) + r.seconds.sum) / r.steps),
        ...names.map(n => digits(r.seconds[n])), bar(names.map(n => r.seconds[n]), whole)]))));
}

function networkPart(network) {
  const layers = new Map(); // key: name of a tensor without its last component
  for (const [name, extents] of network.tensors) {
    const layer = name.replace(/\.[^.]*$/, '');
    if (!layers.has(layer)) layers.set(layer, {shapes: [], n: 0});
    layers.get(layer).shapes.push(`${name.slice(layer.length + 1)} ${extents.join(' \u00d7 ')}`);
    layers.get(layer).n += extents.reduce((a, b) => a * b, 1);
  }
  const {parameters, parameter_bytes, planned_bytes, unshared_bytes} = network;
  return part('Network',
    make('p', {}, `${count(parameters)} parameters in ${memory(parameter_bytes)}, and the same for their gradients` +
      (planned_bytes ? `; a training step plans ${memory(planned_bytes)} on rank 0, ` +
        `${memory(unshared_bytes)} without reuse of memory` : '')),
    folded(`${layers.size} layers`, scroll('layers', table(['layer', 'tensors', 'parameters'],
      [...layers].map(([name, {shapes, n}]) => [name, shapes.join(', '), count(n)])))));
}

function settingsPart({options = {}, ...rest}) {
  const all = [...Object.entries(rest).filter(([name]) => !(name in options)), ...Object.entries(options)];
  return part('Settings', folded('all options', table(['', ''], all.map(([name, value]) =>
    [name, isText(value) ? value : JSON.stringify(value)]), 'text')));
}

/** Returns functions that make the parts of a test. */
const results = (title, of) => [
  () => of?.confusion && confusionPart(title, of.confusion),
  () => of?.predicted && predictedPart(title + ': predicted and true values', of.predicted),
  () => of?.samples?.map(one => samplesPart(`${title}: ${one.title}`, one))];

/** Returns all parts of a run. For trials, the result of the whole sweep comes first. */
function partsOf(run, sweep) {
  const makeSafely = makePart => {
    try {
      return makePart();
    } catch (error) { // the report may be damaged; show the other parts
      return part('A part that cannot be shown', make('p', {class: 'dim'}, String(error)));
    }
  };
  return [
    ...results(`Best: trial ${sweep?.best}, on the test set`, sweep),
    () => run?.bars && barsPart(run.bars),
    ...results('Best model, on the test set', run?.best_on_test),
    ...results(`${sweep && run ? label(run) + ', on the ' : 'On the '}${testSetName(run ?? {})} set`, run),
    () => run?.ranks && ranksPart(run.ranks),
    () => run?.network && networkPart(run.network),
    () => run && Object.keys(run.config).length && settingsPart(run.config)].map(makeSafely).flat().filter(Boolean);
}
