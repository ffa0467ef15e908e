'use strict';
// Charts with curves over epochs. If one run is shown, a chart may also have a thin curve over its steps.

/** Returns about n round numbers. The first is at most `low`, the last at least `high`. */
function roundNumbers(low, high, n) {
  const raw = (high - low) / n, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find(f => f * power >= raw) * power, out = [];
  for (let i = Math.floor(low / step + 1e-9); ; i++) {
    out.push(+(i * step).toPrecision(10));
    // The second condition is for numbers beyond 2^53, which may not change when a step is added.
    if (i * step >= high - 1e-9 * step || out.length > 5 * n) return out;
  }
}

class Chart {
  /**
   * `axis` is 'zero' if the vertical axis starts at 0. `series(run, several, i)` returns the lines of the i-th shown
   * run; `several` is true if more than one run is shown.
   */
  constructor(title, format, axis, series) {
    Object.assign(this, {format, axis, series, cursorX: null, lines: []});
    this.svg = make('svg', {tabindex: 0, role: 'img', 'aria-label': title,
      pointermove: e => this.moveCursor(e.offsetX), pointerleave: () => this.moveCursor(null),
      blur: () => this.moveCursor(null), keydown: e => this.onKey(e)});
    this.legend = make('div');
    this.values = make('output', {'aria-live': 'polite'});
    $('charts').append(make('section', {}, make('h2', {}, title), this.legend, this.svg, this.values));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }
  update(shown) {
    const several = shown.length > 1;
    this.lines = shown.flatMap((run, i) => this.series(run, several, i));
    const legend = several ? [] : this.lines.filter(l => l.name && !l.thin).map(l => [swatch(l.color), l.name]);
    if (several && this.lines.some(l => l.dash)) legend.push([`solid: ${testSetName(...shown)}, dashed: training`]);
    if (this.lines.some(l => l.failed && l.points.length)) legend.push(['\u00d7 failed']);
    this.legend.replaceChildren(...legend.map(entry => make('span', {class: several ? 'key dim' : 'key'}, entry)));
    this.draw();
  }
  draw(width = this.svg.clientWidth, height = this.svg.clientHeight) {
    const left = 54, top = 8, bottom = 20;
    if (!width) return;
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    const all = this.lines.flatMap(line => line.points).filter(p => isNumber(p[0]) && isNumber(p[1]));
    this.svg.replaceChildren();
    if (!all.length) {
      this.svg.append(make('text', {x: left, y: height / 2}, 'no data yet'));
      this.map = null;
      return;
    }
    const xs = all.map(p => p[0]), ys = all.map(p => p[1]);
    const least = list => list.reduce((a, b) => Math.min(a, b)), most = list => list.reduce((a, b) => Math.max(a, b));
    const x1 = Math.max(1e-9, most(xs));
    let [y0, y1] = [this.axis === 'zero' ? 0 : least(ys), most(ys)];
    if (y1 - y0 < 1e-12) [y0, y1] = [y0 - (Math.abs(y0) || 1) / 2, y1 + (Math.abs(y1) || 1) / 2];
    const ticks = roundNumbers(y0, y1, 5);
    y0 = Math.min(y0, ticks[0]), y1 = Math.max(y1, last(ticks));
    const X = x => left + x / x1 * (width - left - 8);
    const Y = y => top + (y1 - y) / (y1 - y0) * (height - top - bottom);
    for (const y of ticks)
      this.svg.append(make('line', {class: 'axis', x1: left, x2: width - 8, y1: Y(y), y2: Y(y)}),
        make('text', {x: left - 5, y: Y(y) + 4, 'text-anchor': 'end'}, this.format(y)));
    for (const x of roundNumbers(0, x1, Math.max(2, width / 90)).filter(x => x <= x1))
      this.svg.append(make('text', {x: X(x), y: height - 4, 'text-anchor': 'middle'}, digits(x)));
    for (const line of this.lines) this.drawLine(line, X, Y);
    this.map = {X, x1, left, width};
    this.cursor = this.svg.appendChild(make('line', {class: 'cursor', y1: top, y2: height - bottom}));
    this.showValues();
  }
  drawLine(line, X, Y) {
    let d = '', pen = 'M';
    for (const [x, y] of line.points) {
      if (isNumber(y)) d += `${pen}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`, pen = 'L';
      else pen = 'M';
    }
    if (d) this.svg.append(make('path', {d, stroke: color(line.color), opacity: line.thin && .4,
      class: line.bold && 'bold', 'stroke-dasharray': line.dash && '5 4'}));
    const real = line.points.filter(p => isNumber(p[1]));
    if (!line.thin && real.length <= 30) for (const [x, y] of real)
      this.svg.append(make('circle', {cx: X(x), cy: Y(y), r: 2.5, fill: color(line.color)}));
    if (line.failed && real.length) this.svg.append(make('text', {class: 'failed', x: X(last(real)[0]),
      y: Y(last(real)[1]) + 6, 'text-anchor': 'middle'}, '\u00d7'));
  }
  moveCursor(offset) {
    if (!this.map) return;
    const {left, width, x1} = this.map;
    this.cursorX = offset === null ? null : Math.min(1, Math.max(0, (offset - left) / (width - left - 8))) * x1;
    this.showValues();
  }
  onKey(event) {
    if (!this.map) return;
    const all = this.lines.filter(l => !l.thin).flatMap(l => l.points.map(p => p[0]));
    const xs = [...new Set(all)].sort((a, b) => a - b);
    const x0 = this.cursorX;
    const moves = {ArrowRight: xs.find(x => x > x0), ArrowLeft: xs.findLast(x => x < (x0 ?? Infinity)),
      Home: xs[0], End: last(xs)};
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.cursorX = moves[event.key] ?? this.cursorX;
    this.showValues();
  }
  /** Shows the cursor and the values at it. */
  showValues() {
    this.cursor.setAttribute('visibility', this.cursorX === null ? 'hidden' : 'visible');
    if (this.cursorX === null) return this.values.replaceChildren();
    this.cursor.setAttribute('x1', this.map.X(this.cursorX));
    this.cursor.setAttribute('x2', this.map.X(this.cursorX));
    const distance = point => Math.abs(point[0] - this.cursorX);
    const nearest = line => line.points.reduce((a, b) => distance(b) < distance(a) ? b : a);
    this.values.replaceChildren(make('span', {}, 'epoch ' + digits(this.cursorX)),
      ...this.lines.filter(l => l.points.length).map(l =>
        make('span', {}, swatch(l.color), `${l.name} `, make('b', {}, this.format(nearest(l)[1])))));
  }
}

/** Returns a `series` for a quantity: its lines for training and test, and for a single run also for its steps. */
const trainingAndTest = quantity => (run, several, i) => {
  const train = points(run, run.epochs, 'train_' + quantity), test = points(run, run.epochs, 'test_' + quantity);
  const bold = run.name === chosen, failed = run.state === 'failed';
  return several ? [{name: label(run) + ' training', color: i, dash: true, bold, points: train},
    {name: label(run), color: i, bold, failed, points: test}] : [
    {name: 'steps', color: 0, thin: true, points: averaged(points(run, run.steps, quantity))},
    {name: 'training', color: 0, points: train}, {name: testSetName(run), color: 1, failed, points: test}];
};
/** Returns a `series` of one line per run. It omits runs that failed in epoch 1: their values may be far off. */
const oneLine = (list, key) => (run, several, i) => several && run.state === 'failed' && !run.epochs.length ? [] : [
  {name: several ? label(run) : '', color: several ? i : 0, bold: several && run.name === chosen,
    points: averaged(points(run, run[list], key))}];
const charts = [
  new Chart('Loss', digits, 'fit', trainingAndTest('loss')),
  new Chart('Accuracy', x => ifNumber(x, v => +(100 * v).toPrecision(4) + ' %'), 'zero', trainingAndTest('accuracy')),
  new Chart('Learning rate', digits, 'zero', oneLine('steps', 'lr')),
  new Chart('Images per second, training', count, 'zero', oneLine('epochs', 'images_per_s')),
  new Chart('Seconds per epoch, training', digits, 'zero', oneLine('epochs', 'seconds')),
];
