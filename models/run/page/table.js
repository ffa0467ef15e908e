'use strict';
// The table of runs: its columns, filter and order.

let order = {column: null, down: false};
const stateOf = run => make('span', {class: 'state ' + (/^(running|failed)$/.exec(run.state)?.[0] ?? '')}, run.state);
const settingText = x => isNumber(x) ? digits(x) : x == null ? '\u2013' : isText(x) ? x : JSON.stringify(x);
/** Returns the names of all options that differ between the runs, except --runs and --run-name. */
function variedOptions(list) {
  return optionNames(list).filter(name => !/^(run-name|runs)$/.test(name) &&
    new Set(list.map(run => JSON.stringify(option(run, name))).filter(Boolean)).size > 1);
}
/**
 * Returns the columns of the table: name and state, results, the settings that differ, and notes. A column has a
 * heading, a function for the value, one for its text or element, and true if a lower value is better.
 */
function columnsOf(list, live) {
  const rankings = list.map(rankingOf).filter((one, i, all) => all.findIndex(other => other.key === one.key) === i);
  const shown = ['test_loss', ...rankings.map(ranking => ranking.key)];
  const textOf = ({name}) => (x, run) => metricText(metricsOf(run).find(m => m.name === name) ?? {})(x);
  const ofSet = (set, prefix) => quantitiesOfAll(list).filter(m => shown.includes(prefix + m.name)).map(m =>
    [set + spaced(m.name), run => latest(run)?.[prefix + m.name], textOf(m), !m.higher_is_better]);
  // Values of different metrics cannot be compared, so each metric has a column of its own.
  const bestColumn = ranking => ['best' + (rankings.length > 1 ? ' ' + spaced(ranking.key.replace(/^test_/, '')) : ''),
    run => rankingOf(run).key === ranking.key ? best(run) : null, (x, run) => metricText(rankingOf(run))(x),
    !ranking.higher_is_better];
  const trialsOf = run => run.count ? `${count(run.ended)} of ${count(run.count)} trials` : '';
  const results = [
    ['epoch', run => run.trials ? run.ended : latest(run)?.epoch, (x, run) => run.trials ? trialsOf(run) : count(x)],
    ['step', run => latest(run)?.step, count],
    ...ofSet(testSetName(...list) + ' ', 'test_'), ...ofSet('train ', 'train_'), ...ofSet('', ''),
    ...rankings.map(bestColumn),
    ['time', elapsed, seconds, true]];
  const text = (title, key) => list.some(run => run[key]) ?
    [[title, run => run[key], x => make('div', {class: 'note'}, x ?? '')]] : [];
  return [
    [sweep ? 'trial' : 'run', run => run.name, String],
    ...(live || sweep ? [['state', run => run.state, (_, run) => run.state ? stateOf(run) : '']] : []),
    ...results.filter(([, value]) => list.some(run => !isMissing(value(run)))),
    ...variedOptions(list).map(name => [name, run => option(run, name), settingText]),
    ...text('reason', 'note'), ...text('notes', 'notes')];
}
const isMissing = v => v == null || v !== v || v === -Infinity;
function sorted(list, column) {
  if (!column) return list;
  return [...list].sort((a, b) => {
    const [x, y] = [column[1](a), column[1](b)];
    if (isMissing(x) || isMissing(y)) return isMissing(x) - isMissing(y); // missing values come last
    const ascending = isNumber(x) && isNumber(y) ? x - y : String(x).localeCompare(String(y), 'en', {numeric: true});
    return order.down ? -ascending : ascending;
  });
}

/** Returns the runs with all words of the filter in their row, in the order of the table, and shows their number. */
function tableRuns(list, columns) {
  const words = $('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = list.filter(run => words.every(word =>
    columns.some(([, value]) => settingText(value(run)).toLowerCase().includes(word))));
  $('filtered').textContent = words.length ? `${found.length} of ${list.length}` : '';
  return sorted(found, columns.find(c => c[0] === order.column));
}

// ---- the table ----
function runCell(run) {
  return [make('input', {type: 'checkbox', 'aria-label': 'show ' + label(run), 'data-key': 'show ' + run.name,
    checked: run.shown, change: e => e.target.checked ? chooseRun(run) : (run.shown = false, update())}), ' ',
  run.shown ? swatch(colorOf(run)) : null,
  make('button', {class: 'plain', title: run.name, 'data-key': 'choose ' + run.name,
    click: () => chooseRun(run)}, run.name),
  run.name === sweep?.best ? ' (best)' : null];
}
/** Returns the address of the page of a sweep's trials in the monitor. */
const trialsAddress = run => `trials/${encodeURIComponent(run.name)}/?token=${token}`;
/** Returns the buttons and links of a run. In the file of a sweep, a link leads to the trial's report in its folder. */
function actions(run, live) {
  const link = (text, href) => make('a', {href, 'data-key': `${text} ${run.name}`}, text);
  if (live) return [stopButton(run), ' ', // the report must not learn the token; run.page is the key of this report
    run.page ? link('report', `report?run=${encodeURIComponent(run.name)}&key=${run.page}`) : null, ' ',
    run.trials ? link('trials', trialsAddress(run)) : null];
  return run.begun ? link('report', `trials/${encodeURIComponent(run.name)}/report.html`) : null;
}
/** Returns the class of a column's cells: a narrow screen has room for the name, the state and the best result. */
const widthOf = name => /^(run|trial|state|best.*)$/.test(name) ? null : 'wide';
function runTable(rows, columns, live) {
  const head = columns.map(([name, value, , lower], i) => {
    const isSorted = name === order.column;
    const sort = isSorted && (order.down ? 'descending' : 'ascending');
    const kind = [/^(reason|notes)$/.test(name) && 'reason', i && widthOf(name)].filter(Boolean).join(' ');
    const title = name === 'best' && sweep ? 'best ' + rankingOf().title : null;
    return make('th', {class: kind || null, title, 'aria-sort': sort, scope: 'col'},
      make('button', {'data-key': 'sort ' + name, click: () => {
        order = {column: name, down: isSorted ? !order.down : !lower && rows.some(run => isNumber(value(run)))};
        update();
      }}, name, isSorted ? order.down ? ' \u25be' : ' \u25b4' : ''));
  });
  const withActions = live || (sweep && !token);
  const body = rows.map(run => {
    const [name, ...cells] = columns.map(([heading, value, text], i) =>
      make('td', {class: i ? widthOf(heading) : null}, i ? text(value(run), run) : runCell(run)));
    return make('tr', {class: run.name === chosen && 'chosen'}, name,
      withActions ? make('td', {class: 'wide'}, actions(run, live)) : null, cells);
  });
  const pages = withActions ? make('th', {class: 'wide', scope: 'col', 'aria-label': 'pages'}) : null;
  return make('table', {}, make('thead', {}, make('tr', {}, head[0], pages, head.slice(1))), make('tbody', {}, body));
}
