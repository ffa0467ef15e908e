'use strict';
// Charts with curves over epochs, steps or time. All have the same horizontal axis, and are zoomed together.

/** Returns about n round numbers. The first is at most `low`, the last at least `high`. */
function roundNumbers(low, high, n) {
  const raw = (high - low) / n, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find(f => f * power >= raw) * power, out = [];
  for (let i = Math.floor(low / step + 1e-9); ; i++) {
    out.push(+(i * step).toPrecision(10));
    // Beyond 2^53, i + 1 may equal i. Then only the second condition ends the loop.
    if (i * step >= high - 1e-9 * step || out.length > 5 * n) return out;
  }
}

/**
 * Returns powers of ten from `low` to `high`. If that range is less than two decades, adds their multiples by 2 and 5.
 * If it is more than six decades, leaves out powers at regular distances.
 */
function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), decades = Math.log10(high / low), out = [];
  const every = Math.max(1, Math.ceil(decades / 6));
  for (let power = first; power <= Math.log10(high) + 1; power += every)
    for (const factor of decades < 2 ? [1, 2, 5] : [1]) out.push(+(factor * 10 ** power).toPrecision(3));
  return out.filter(y => y >= low && y <= high);
}
/**
 * Returns the upper end of an axis that shows most curves well. This is the largest value, unless that is far above
 * the typical largest value of a curve, as in a diverged run. The largest 3 % of the values of each curve do not count:
 * often these are its first values and spikes.
 */
function upperEnd(curves, low, high) {
  const sortedValues = list => [...list].sort((a, b) => a - b);
  const typical = sortedValues(curves.map(ys => sortedValues(ys)[Math.ceil(.97 * (ys.length - 1))]));
  const limit = low + 4 * (typical[Math.floor((typical.length - 1) / 2)] - low);
  const end = typical.findLast(y => y <= limit) ?? limit;
  return end > low && high - low > 4 * (end - low) ? end : high;
}

/** The settings of all charts. `zoom` is [from, to] on the horizontal axis, or null. */
const view = {axis: 'epoch', zoom: null, smoothing: 0, steps: 'auto'};
const MARGIN = {left: 66, right: 8, top: 8, bottom: 36};

class Chart {
  /**
   * `options.zero`: the vertical axis includes 0, unless it is logarithmic. `options.log`: offers a logarithmic axis.
   * `options.clip`: cuts off outliers (see upperEnd()), until the user turns this off. `series(shown)` returns the
   * lines of the shown runs. A line has `name`, `color` and `points`. It may have flags for its style.
   */
  constructor(title, unit, format, options, series) {
    Object.assign(this, {title, unit, format, options, series, cursorX: null, cursorY: null, dragX: null, lines: []});
    this.log = false, this.clip = options.clip;
    this.svg = make('svg', {class: 'chart', tabindex: 0, role: 'img', 'aria-label': title + '. Keys: left and right ' +
        'arrow move the cursor, plus and minus zoom, 0 resets the zoom.', pointerdown: e => this.onDown(e),
      pointermove: e => this.onMove(e), pointerup: e => this.onUp(e),
      pointercancel: () => this.dragX = null, pointerleave: () => this.moveCursor(null),
      dblclick: () => setZoom(null), blur: () => this.moveCursor(null), keydown: e => this.onKey(e)});
    const toggle = (name, text) => make('label', {}, make('input', {type: 'checkbox', checked: this[name], name,
      change: e => (this[name] = e.target.checked, this.draw())}), ' ' + text);
    this.legend = make('div', {class: 'legend'});
    this.note = make('span', {class: 'key dim'});
    this.values = make('output', {'aria-live': 'polite'});
    this.section = $('charts').appendChild(make('section', {}, make('div', {class: 'head'}, make('h2', {}, title),
      options.log ? toggle('log', 'log') : null, options.clip ? toggle('clip', 'clip outliers') : null),
    this.legend, this.svg, this.values));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }
  /** Shows the curves of these runs. Hides the chart if they have no points, unless `isFirst` is true. */
  update(shown, isFirst) {
    const several = shown.length > 1;
    this.lines = this.series(shown).filter(line => line.points.length);
    this.section.hidden = !isFirst && !this.lines.length;
    const named = several ? [] : this.lines.filter(l => l.name && !l.thin && !l.fine);
    const legend = named.map(l => [swatch(l.color), l.name]);
    if (several && this.lines.some(l => l.dash)) legend.push([`solid: ${testSetName(...shown)}, dashed: training`]);
    if (this.lines.some(l => l.failed)) legend.push(['\u00d7 failed']);
    this.legend.replaceChildren(...legend.map(entry => make('span', {class: several ? 'key dim' : 'key'}, entry)),
      this.note);
    this.values.className = several ? 'several' : '';
    this.draw();
  }
  /** Returns the visible points of a line, and one on either side, so that the curve goes on to the edges. */
  visible(all) {
    if (!view.zoom) return all;
    const from = all.findIndex(p => p[0] >= view.zoom[0]), to = all.findLastIndex(p => p[0] <= view.zoom[1]);
    return from < 0 ? all.slice(-1) : all.slice(Math.max(0, from - 1), to + 2);
  }
  draw(width = this.svg.clientWidth, height = this.svg.clientHeight) {
    if (width < 100) return; // hidden
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    const limit = Math.min(400, Math.max(60, Math.floor(24000 / this.lines.length)));
    const canDraw = y => isNumber(y) && !(this.log && y <= 0);
    this.drawn = this.lines.map(line => ({...line, points: averaged(this.visible(line.points), limit)
      .map(([x, y]) => [x, canDraw(y) ? y : null])})).filter(line => line.points.some(p => p[1] !== null));
    this.svg.replaceChildren();
    this.note.textContent = '';
    if (!this.drawn.length) {
      this.svg.append(make('text', {x: MARGIN.left, y: height / 2}, 'no data yet'));
      this.map = null;
      this.values.replaceChildren();
      return;
    }
    this.map = this.scales(width, height);
    const {X, Y, x0, x1, yTicks} = this.map, right = width - MARGIN.right, bottom = height - MARGIN.bottom;
    const text = (attributes, content) => this.svg.append(make('text', attributes, content));
    for (const y of yTicks) {
      this.svg.append(make('line', {class: 'axis', x1: MARGIN.left, x2: right, y1: Y(y), y2: Y(y)}));
      text({x: MARGIN.left - 5, y: Y(y) + 4, 'text-anchor': 'end'}, this.format(y));
    }
    const [xTitle, scale] = axisTitle(x1);
    for (const x of roundNumbers(x0 / scale, x1 / scale, Math.max(2, width / 90)).map(x => x * scale))
      if (x >= x0 && x <= x1)
        text({x: Math.min(X(x), right - 8), y: bottom + 14, 'text-anchor': 'middle'}, digits(x / scale));
    text({class: 'title', x: (MARGIN.left + right) / 2, y: height - 5, 'text-anchor': 'middle'}, xTitle);
    text({class: 'title', transform: `translate(12 ${(MARGIN.top + bottom) / 2}) rotate(-90)`, 'text-anchor': 'middle'},
      this.unit);
    // Lines are cut off at the edges of this inner element. Its origin is that of the outer one.
    const [w, h] = [right - MARGIN.left + 4, bottom - MARGIN.top + 4]; // room for the marks at the ends
    this.plot = this.svg.appendChild(make('svg', {class: 'plot', x: MARGIN.left, y: MARGIN.top - 4, width: w, height: h,
      viewBox: `${MARGIN.left} ${MARGIN.top - 4} ${w} ${h}`}));
    for (const line of this.drawn) this.drawLine(line, X, Y);
    this.selection = this.plot.appendChild(make('rect', {class: 'selection', y: 0, height, visibility: 'hidden'}));
    this.cursor = this.plot.appendChild(make('line', {class: 'cursor', y1: 0, y2: height}));
    this.showValues();
  }
  /**
   * Returns the functions X and Y from values to places in the picture, the range x0 to x1 of the horizontal axis, the
   * ticks of the vertical axis, and the width.
   */
  scales(width, height) {
    const least = list => list.reduce((a, b) => Math.min(a, b)), most = list => list.reduce((a, b) => Math.max(a, b));
    const curves = this.drawn.map(line => line.points.filter(p => p[1] !== null));
    const all = curves.flat(), ys = all.map(p => p[1]);
    const [x0, x1] = view.zoom ?? [0, Math.max(1e-9, most(all.map(p => p[0])))];
    const lowest = least(ys), highest = most(ys);
    let y0 = this.options.zero && !this.log ? Math.min(0, lowest) : lowest;
    let y1 = this.clip ? upperEnd(curves.map(points => points.map(p => p[1])), y0, highest) : highest;
    if (y1 < highest) this.note.textContent = `clipped; the highest value is ${this.format(highest)}`;
    if (y1 - y0 < 1e-12 * Math.abs(y1) || y1 === y0)
      [y0, y1] = this.log ? [y0 / 2, y1 * 2] : [y0 - (Math.abs(y0) || 1) / 2, y1 + (Math.abs(y1) || 1) / 2];
    const yTicks = this.log ? logTicks(y0, y1) : roundNumbers(y0, y1, 5);
    if (!this.log) y0 = Math.min(y0, yTicks[0]), y1 = Math.max(y1, last(yTicks));
    const low = y0, f = this.log ? y => Math.log10(Math.max(y, low)) : y => y;
    const X = x => MARGIN.left + (x - x0) / (x1 - x0) * (width - MARGIN.left - MARGIN.right);
    const Y = y => MARGIN.top + (f(y1) - f(y)) / (f(y1) - f(y0)) * (height - MARGIN.top - MARGIN.bottom);
    return {X, Y, x0, x1, yTicks, width};
  }
  drawLine(line, X, Y) {
    const at = (x, y) => `${X(x).toFixed(1)} ${Math.max(-1e4, Y(y)).toFixed(1)}`;
    let d = '', pen = 'M';
    for (const [x, y] of line.points) {
      if (y !== null) d += pen + at(x, y), pen = 'L';
      else pen = 'M';
    }
    const alone = this.drawn.every(other => other.thin);
    const real = line.points.filter(p => p[1] !== null);
    this.plot.append(make('path', {d, stroke: color(line.color), opacity: line.thin && !alone && .4,
      class: line.bold ? 'bold' : line.thin ? 'thin' : line.fine && 'fine', 'stroke-dasharray': line.dash && '5 4'}));
    if (!line.thin && real.length <= 30 && this.drawn.length <= 20) for (const [x, y] of real)
      this.plot.append(make('circle', {cx: X(x), cy: Y(y), r: 2.5, fill: color(line.color)}));
    if (line.failed) this.plot.append(make('text', {class: 'failed', x: X(last(real)[0]),
      y: Math.max(MARGIN.top + 10, Y(last(real)[1]) + 6), 'text-anchor': 'middle'}, '\u00d7'));
  }
  /** Returns the position on the horizontal axis at a distance from the left edge of the picture. */
  positionAt(offset) {
    const {x0, x1, width} = this.map;
    const part = (offset - MARGIN.left) / (width - MARGIN.left - MARGIN.right);
    return x0 + Math.min(1, Math.max(0, part)) * (x1 - x0);
  }
  onDown(event) {
    if (!this.map || event.button !== 0) return;
    this.dragX = this.offset(event);
    this.svg.setPointerCapture(event.pointerId);
  }
  onMove(event) {
    if (!this.map) return;
    const x = this.offset(event);
    if (this.dragX !== null) {
      this.selection.setAttribute('visibility', 'visible');
      this.selection.setAttribute('x', Math.min(x, this.dragX));
      this.selection.setAttribute('width', Math.abs(x - this.dragX));
    }
    this.moveCursor(x, event.clientY - this.svg.getBoundingClientRect().top);
  }
  onUp(event) {
    if (this.dragX === null) return;
    const range = [this.dragX, this.offset(event)].sort((a, b) => a - b);
    this.dragX = null;
    this.selection?.setAttribute('visibility', 'hidden');
    if (this.map && range[1] - range[0] > 5) setZoom(range.map(x => this.positionAt(x)));
  }
  offset(event) { return event.clientX - this.svg.getBoundingClientRect().left; }
  moveCursor(offset, height = null) {
    if (!this.map) return;
    this.cursorX = offset === null ? null : this.positionAt(offset);
    this.cursorY = height;
    this.showValues();
  }
  onKey(event) {
    if (!this.map) return;
    const {x0, x1} = this.map, thick = this.drawn.filter(l => !l.thin);
    const all = (thick.length ? thick : this.drawn).flatMap(l => l.points.map(p => p[0]));
    const xs = [...new Set(all)].filter(x => x >= x0 && x <= x1).sort((a, b) => a - b);
    const x = this.cursorX, middle = x ?? (x0 + x1) / 2;
    const moves = {ArrowRight: xs.find(at => at > x), ArrowLeft: xs.findLast(at => at < (x ?? Infinity)),
      Home: xs[0], End: last(xs)};
    const zooms = {'+': .5, '=': .5, '-': 2};
    if (event.key in moves) this.cursorX = moves[event.key] ?? x, this.cursorY = null, this.showValues();
    else if (event.key in zooms)
      setZoom([middle - (middle - x0) * zooms[event.key], middle + (x1 - middle) * zooms[event.key]]);
    else if (event.key === '0' || event.key === 'Escape') setZoom(null);
    else return;
    event.preventDefault();
  }
  /** Shows the cursor and the values at it. If there are more than 4 lines, those near the pointer come first. */
  showValues() {
    this.cursor.setAttribute('visibility', this.cursorX === null ? 'hidden' : 'visible');
    if (this.cursorX === null) return this.values.replaceChildren();
    const {X, Y, x1} = this.map, [title, scale] = axisTitle(x1);
    this.cursor.setAttribute('x1', X(this.cursorX));
    this.cursor.setAttribute('x2', X(this.cursorX));
    const distance = point => Math.abs(point[0] - this.cursorX);
    const found = this.drawn.filter(line => line.name !== null).map(line =>
      ({line, y: line.points.reduce((a, b) => distance(b) < distance(a) ? b : a)[1]}));
    const away = one => one.y === null ? Infinity : Math.abs(Y(one.y) - this.cursorY);
    if (this.cursorY !== null && found.length > 4) found.sort((a, b) => away(a) - away(b));
    this.values.replaceChildren(make('span', {}, `${title} ${digits(this.cursorX / scale)}`),
      ...found.slice(0, 40).map(({line, y}) =>
        make('span', {}, swatch(line.color), `${line.name} `, make('b', {}, this.format(y)))));
  }
}

/** Returns the horizontal axis: view.axis, but 'step' in place of 'epoch' if a shown run has no epochs. */
const axis = () => view.axis === 'epoch' && shownRuns().some(run => run.steps.length && perEpoch(run) === Infinity) ?
  'step' : view.axis;
/**
 * Returns the title of the horizontal axis, and the factor from its printed numbers to positions: 60 if it shows
 * minutes, since positions are seconds.
 */
function axisTitle(end) {
  if (view.axis !== 'time') return [axis(), 1];
  return end < 120 ? ['training time (s)', 1] : end < 7200 ? ['training time (min)', 60] : ['training time (h)', 3600];
}
function setZoom(range) {
  if (range) {
    const full = Math.max(1e-9, ...charts.flatMap(chart => chart.lines.map(line => last(line.points)?.[0] ?? 0)));
    range = [Math.max(0, range[0]), Math.min(full, range[1])];
    if (range[0] === 0 && range[1] === full) range = null;
    else if (!(range[1] - range[0] > 1e-6 * full)) return;
  }
  view.zoom = range;
  $('unzoom').disabled = !range;
  charts.forEach(chart => chart.draw());
}
/** Sets a member of `view` and draws the charts again. */
function setView(name, value) {
  view[name] = value;
  if (name === 'axis') view.zoom = null, $('unzoom').disabled = true;
  for (const run of runs.values()) run.computed = null;
  updateCharts(shownRuns());
}

// ---- lines ----
const curve = (run, list, key) =>
  computed(run, `${axis()} ${list} ${key}`, () => points(run, run[list], key, axis()));
/**
 * Returns the thin line of a quantity by step. With smoothing, also returns the line of its averages; if several runs
 * are shown, only that line.
 */
function stepLines(run, quantity, name, color, several) {
  const all = curve(run, 'steps', quantity);
  const raw = {name, color, thin: true, points: all};
  if (!view.smoothing) return [raw];
  const line = {name: name + ' smoothed', color, fine: true,
    points: computed(run, `${axis()} smoothed ${quantity}`, () => smoothed(all, view.smoothing))};
  return several ? [line] : [{...raw, name: null}, line];
}
/** Returns a `series` for a quantity: lines for training and test, and for the steps where view.steps asks for them. */
const trainingAndTest = quantity => all => {
  const shown = all.filter(run => quantitiesOf(run).some(({name}) => name === quantity));
  const several = all.length > 1, [train, test] = ['train_' + quantity, 'test_' + quantity];
  return shown.flatMap(run => {
    const withSteps = view.steps === 'auto' ? shown.length <= 8 || !run.epochs.length : view.steps === 'on';
    const bold = several && run.name === chosen, failed = run.state === 'failed', color = several ? colorOf(run) : 0;
    const steps = withSteps ? stepLines(run, quantity, several ? label(run) + ' steps' : 'steps', color, several) : [];
    const epochs = several ? [
      {name: label(run) + ' training', color, dash: true, bold, points: curve(run, 'epochs', train)},
      {name: label(run), color, bold, failed, points: curve(run, 'tests', test)}] : [
      {name: 'training', color, points: curve(run, 'epochs', train)},
      {name: testSetName(run), color: 1, failed, points: curve(run, 'tests', test)}];
    return [...steps, ...epochs];
  });
};
/** Returns a `series` of one line per run. Of several runs, it omits those that failed in epoch 1, as outliers. */
const oneLine = (list, key) => shown => {
  const several = shown.length > 1;
  return shown.filter(run => !several || run.state !== 'failed' || run.epochs.length).map(run =>
    ({name: several ? label(run) : '', color: several ? colorOf(run) : 0, bold: several && run.name === chosen,
      points: curve(run, list, key)}));
};
const inPercent = x => ifNumber(x, v => +(100 * v).toPrecision(4) + '\u00a0%');
const charts = [
  new Chart('Learning rate', 'learning rate', digits, {zero: true, log: true}, oneLine('steps', 'lr')),
  ...['images', 'samples'].map(things => new Chart(`${things[0].toUpperCase()}${things.slice(1)} per second, training`,
    things + '/s', count, {zero: true}, oneLine('epochs', things + '_per_s'))),
  new Chart('Seconds per epoch, training', 'seconds', digits, {zero: true}, oneLine('epochs', 'seconds')),
];
/** Adds a chart for each quantity of these runs that has none. */
function addMetricCharts(list) {
  const known = charts.map(chart => chart.metric);
  for (const metric of quantitiesOfAll(list)) {
    if (known.includes(metric.name)) continue;
    const title = spaced(metric.name[0].toUpperCase() + metric.name.slice(1)), fraction = metric.unit === '%';
    const chart = new Chart(title, fraction ? spaced(metric.name) : metric.unit || spaced(metric.name),
      fraction ? inPercent : digits, {zero: fraction, log: !fraction, clip: !fraction}, trainingAndTest(metric.name));
    const at = charts.findLastIndex(one => one.metric) + 1;
    charts[at].section.before(chart.section);
    charts.splice(at, 0, Object.assign(chart, {metric: metric.name}));
  }
}
/** Draws the charts of these runs. While they have no lines, there is only the chart of their main metric. */
function updateCharts(shown) {
  const isEmpty = !shown.some(run => run.steps.length || run.epochs.length);
  for (const chart of charts)
    chart.update(shown, isEmpty && chart.metric === mainMetric(shown[0]).name);
}
