'use strict';
// Curves over epochs: of one run its steps, training and test; of several the same quantity of each.

/** Round numbers from at most `low` to at least `high`, about n of them. */
function roundNumbers(low, high, n) {
  const raw = (high - low) / n, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find(f => f * power >= raw) * power, out = [];
  for (let i = Math.floor(low / step + 1e-9); ; i++) {
    out.push(+(i * step).toPrecision(10));
    if (i * step >= high - 1e-9 * step || out.length > 5 * n) return out; // numbers beyond 2^53 do not count up
  }
}

class Chart {
  /** `axis`: 'zero' for one that begins there. `series(run, several, i)`: the lines of the i-th run that is shown. */
  constructor(title, format, axis, series) {
    Object.assign(this, {format, axis, series, at: null, lines: []});
    this.svg = make('svg', {tabindex: 0, role: 'img', 'aria-label': title, pointermove: e => this.point(e.offsetX),
      pointerleave: () => this.point(null), blur: () => this.point(null), keydown: e => this.key(e)});
    this.keys = make('div');
    this.values = make('output', {'aria-live': 'polite'});
    $('charts').append(make('section', {}, make('h2', {}, title), this.keys, this.svg, this.values));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }
  update(shown) {
    const several = shown.length > 1;
    this.lines = shown.flatMap((run, i) => this.series(run, several, i));
    const keys = several ? [] : this.lines.filter(l => l.name && !l.thin).map(l => [swatch(l.color), l.name]);
    if (several && this.lines.some(l => l.dash)) keys.push([`solid: ${tested(...shown)}, dashed: training`]);
    if (this.lines.some(l => l.failed && l.points.length)) keys.push(['\u00d7 failed']);
    this.keys.replaceChildren(...keys.map(key => make('span', {class: several ? 'key dim' : 'key'}, key)));
    this.draw();
  }
  draw(width = this.svg.clientWidth, height = this.svg.clientHeight) {
    const left = 54, top = 8, bottom = 20;
    if (!width) return;
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    const all = this.lines.flatMap(line => line.points).filter(p => isNumber(p[0]) && isNumber(p[1]));
    this.svg.replaceChildren();
    if (!all.length) {
      this.svg.append(make('text', {x: left, y: height / 2}, 'nothing yet'));
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
    this.show();
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
  point(offset) {
    if (!this.map) return;
    const {left, width, x1} = this.map;
    this.at = offset === null ? null : Math.min(1, Math.max(0, (offset - left) / (width - left - 8))) * x1;
    this.show();
  }
  key(event) {
    if (!this.map) return;
    const all = this.lines.filter(l => !l.thin).flatMap(l => l.points.map(p => p[0]));
    const xs = [...new Set(all)].sort((a, b) => a - b);
    const moves = {ArrowRight: xs.find(x => x > this.at), ArrowLeft: xs.findLast(x => x < (this.at ?? Infinity)),
      Home: xs[0], End: last(xs)};
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.at = moves[event.key] ?? this.at;
    this.show();
  }
  /** The values at the cursor, if there is one. */
  show() {
    this.cursor.setAttribute('visibility', this.at === null ? 'hidden' : 'visible');
    if (this.at === null) return this.values.replaceChildren();
    this.cursor.setAttribute('x1', this.map.X(this.at));
    this.cursor.setAttribute('x2', this.map.X(this.at));
    const nearest = line => line.points.reduce((a, b) => Math.abs(b[0] - this.at) < Math.abs(a[0] - this.at) ? b : a);
    this.values.replaceChildren(make('span', {}, 'epoch ' + digits(this.at)),
      ...this.lines.filter(l => l.points.length).map(l =>
        make('span', {}, swatch(l.color), `${l.name} `, make('b', {}, this.format(nearest(l)[1])))));
  }
}

/** Training and test of one quantity; with a single run also its steps. */
const pair = quantity => (run, several, i) => {
  const train = points(run, run.epochs, 'train_' + quantity), test = points(run, run.epochs, 'test_' + quantity);
  const bold = run.name === chosen, failed = run.state === 'failed';
  return several ? [{name: label(run) + ' training', color: i, dash: true, bold, points: train},
    {name: label(run), color: i, bold, failed, points: test}] : [
    {name: 'steps', color: 0, thin: true, points: thinned(points(run, run.steps, quantity))},
    {name: 'training', color: 0, points: train}, {name: tested(run), color: 1, failed, points: test}];
};
/** One quantity; not of a trial that failed in its first epoch, which may have had absurd settings. */
const single = (list, key) => (run, several, i) => several && run.state === 'failed' && !run.epochs.length ? [] : [
  {name: several ? label(run) : '', color: several ? i : 0, bold: several && run.name === chosen,
    points: thinned(points(run, run[list], key))}];
const charts = [
  new Chart('Loss', digits, 'fit', pair('loss')),
  new Chart('Accuracy', x => or(x, v => +(100 * v).toPrecision(4) + ' %'), 'zero', pair('accuracy')),
  new Chart('Learning rate', digits, 'zero', single('steps', 'lr')),
  new Chart('Images per second, training', count, 'zero', single('epochs', 'images_per_s')),
  new Chart('Seconds per epoch, training', digits, 'zero', single('epochs', 'seconds')),
];
