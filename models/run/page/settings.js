'use strict';
// A picture of many runs: a metric over a setting.

const axes = {setting: null, metric: null};
/**
 * Returns a function from values to positions from 0 to 1, with its `ticks`. Numbers get a linear axis, or a
 * logarithmic one if they are positive and far apart. Other values are sorted and get equal distances.
 */
function scaleOf(values) {
  const known = [...new Set(values.filter(v => !isMissing(v)))];
  if (known.length && known.every(isNumber)) {
    const low = known.sort((a, b) => a - b)[0], high = last(known);
    const f = low > 0 && high / low >= 30 ? Math.log : x => x;
    const scale = x => high > low ? (f(x) - f(low)) / (f(high) - f(low)) : .5;
    return Object.assign(scale, {ticks: known.length <= 6 ? known : [low, high]});
  }
  const texts = [...new Set(known.map(settingText))].sort((a, b) => a.localeCompare(b, 'en', {numeric: true}));
  const scale = x => texts.length > 1 ? texts.indexOf(settingText(x)) / (texts.length - 1) : .5;
  return Object.assign(scale, {ticks: texts.length <= 12 ? texts : [texts[0], last(texts)]});
}
/** Returns the colour of a result from 0 (worst) to 1 (best). */
const resultColor = t => `color-mix(in oklab, var(--c0) ${Math.round(100 * t)}%, var(--c1))`;

/**
 * Draws the picture of the runs into #settings. Hides it if no setting differs, if there are fewer than 3 runs, or
 * before the first of them has results.
 */
function drawSettings(all) {
  const list = all.filter(run => !run.trials), settings = variedOptions(list); // a sweep has no settings of its own
  const metrics = metricColumns(list).filter(([name]) => !/^(epoch|step|time)$/.test(name));
  const section = $('settings');
  section.hidden = !settings.length || list.length < 3 || !metrics.length;
  if (section.hidden) return;
  const setting = settings.includes(axes.setting) ? axes.setting : settings[0];
  const find = test => metrics.find(([name]) => test(name));
  const metric = find(name => name === axes.metric) ?? find(name => /^best/.test(name)) ?? metrics[0];
  const done = list.filter(run => isNumber(metric[1](run)));
  const toBetter = y => metric[3].lower ? 1 - y : y, height = scaleOf(done.map(metric[1]));
  const results = done.map(run => ({run, y: height(metric[1](run)), quality: toBetter(height(metric[1](run)))}))
    .sort((a, b) => a.quality - b.quality); // the best are drawn last, above the others
  setChoices($('setting'), settings, setting);
  setChoices($('metric'), metrics.map(([name]) => name), metric[0]);
  const width = Math.min(560, section.clientWidth - 34), said = section.querySelector('output');
  section.querySelector('.picture').replaceChildren(scatter(results, setting, metric, height, width, said));
}
const cut = (text, n) => text.length > n ? text.slice(0, n - 1) + '\u2026' : text;

function scatter(results, setting, [name, value, text], height, W, said) {
  const [H, left, bottom] = [250, 66, 210], width = scaleOf(results.map(one => option(one.run, setting)));
  const X = run => left + 15 + width(option(run, setting)) * (W - left - 45), Y = y => bottom - 10 - y * (bottom - 30);
  const tell = ({run}) => said.replaceChildren(make('span', {}, `${label(run)}: ${setting} ` +
    `${settingText(option(run, setting))}, ${name} ${text(value(run))}`));
  const known = results.filter(one => !isMissing(option(one.run, setting)));
  const marks = known.map(one => make('circle', {cx: X(one.run), cy: Y(one.y), r: one.run.name === chosen ? 7 : 4.5,
    fill: resultColor(one.quality), pointerenter: () => tell(one), click: () => chooseRun(one.run)}));
  const inOrder = [...known].sort((a, b) => X(a.run) - X(b.run) || a.y - b.y);
  const onKey = event => {
    const now = inOrder.findIndex(one => one.run.name === chosen);
    const moves = {ArrowRight: inOrder[now + 1], ArrowLeft: inOrder[now - 1], Home: inOrder[0], End: last(inOrder)};
    const next = moves[event.key];
    if (!next) return;
    event.preventDefault();
    chooseRun(next.run);
  };
  return make('svg', {class: 'chart', viewBox: `0 0 ${W} ${H}`, tabindex: 0, role: 'img', 'data-key': 'scatter',
    keydown: onKey, 'aria-label': `${name} over ${setting}. The arrow keys choose a run.`},
  frame(W, H, left, bottom, cut(setting, 60), name),
  width.ticks.map(x => svgText(left + 15 + width(x) * (W - left - 45), bottom + 14, cut(settingText(x), 10))),
  [...new Set([height.ticks[0], last(height.ticks)])].map(y => svgText(left - 5, Y(height(y)) + 4, text(y), 'end')),
  marks);
}
