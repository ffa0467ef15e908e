'use strict';
// The table of runs: its columns, filter, order, and export.

let order = {column: null, down: false};
const stateOf = run => make('span', {class: 'state ' + (/^(running|failed)$/.exec(run.state)?.[0] ?? '')}, run.state);
const settingText = x => isNumber(x) ? digits(x) : x == null ? '\u2013' : typeof x === 'string' ? x : JSON.stringify(x);
/** Returns the names of all options that differ between the runs, except --runs and --run-name. */
function variedOptions(list) {
  const names = new Set(list.flatMap(run => Object.keys(run.config?.options ?? {})));
  return [...names].filter(name => !/^(run-name|runs)$/.test(name) &&
    new Set(list.map(run => JSON.stringify(option(run, name))).filter(Boolean)).size > 1);
}
/** Returns the columns of metrics: heading, function for the value, function for its text. */
const metricColumns = list => [
  ['epoch', run => lastEpoch(run)?.epoch, count],
  ['train loss', run => lastEpoch(run)?.train_loss, digits],
  [testSetName(...list) + ' loss', run => lastEpoch(run)?.test_loss, digits],
  ...metricsOf(list[0]).map(m =>
    [`${testSetName(...list)} ${spaced(m.name)}`, run => lastEpoch(run)?.['test_' + m.name], metricText(m)]),
  ['best', best, metricText(mainMetric(...list))],
  ['images/s', run => lastEpoch(run)?.images_per_s, count]];
function columnsOf(list, live) {
  const text = (title, key) => list.some(run => run[key]) ?
    [[title, run => run[key], x => make('div', {class: 'note'}, x ?? '')]] : [];
  return [ // heading, function for the value, function for its text or element
    [sweep ? 'trial' : 'run', run => run.name, String],
    ...(live || sweep ? [['state', run => run.state, (_, run) => run.state ? stateOf(run) : '']] : []),
    ...metricColumns(list), ...variedOptions(list).map(name => [name, run => option(run, name), settingText]),
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

// ---- filter: words that a row must have, and comparisons such as lr>0.01 ----
/** Returns a function that is true for the runs that match a word of the filter. Throws Error for an unknown column. */
function condition(word, columns, list) {
  const plain = text => text.toLowerCase().replace(/[^a-z0-9]/g, '');
  const [, name, operator, text] = /^([^<>=!]+)(<=|>=|!=|=|<|>)(.*)$/.exec(word) ?? [];
  if (!operator)
    return run => columns.some(([, value]) => String(value(run) ?? '').toLowerCase().includes(word.toLowerCase()));
  const options = new Set(list.flatMap(run => Object.keys(run.config?.options ?? {})));
  const key = [...options].find(known => plain(known) === plain(name));
  const value = columns.find(([title]) => plain(title) === plain(name))?.[1] ?? (key && (run => option(run, key)));
  if (!value) throw new Error(`expected a column, got ${name}`);
  const number = text.endsWith('%') ? Number(text.slice(0, -1)) / 100 : text === '' ? NaN : Number(text);
  return run => {
    const x = value(run);
    if (operator === '=' || operator === '!=')
      return (isNumber(x) && isNumber(number) ? x === number : settingText(x) === text) === (operator === '=');
    return isNumber(x) && ({'<': x < number, '<=': x <= number, '>': x > number, '>=': x >= number})[operator];
  };
}
/**
 * Returns the runs that match the filter, in the order of the table, and shows their number. If the filter is wrong,
 * returns all runs, and shows the error.
 */
function tableRuns(list, columns) {
  let found = list;
  try {
    const words = $('filter').value.split(/\s+/).filter(Boolean).map(word => condition(word, columns, list));
    found = list.filter(run => words.every(holds => holds(run)));
    $('filtered').textContent = words.length ? `${found.length} of ${list.length}` : '';
  } catch (error) {
    $('filtered').textContent = error.message;
  }
  return sorted(found, columns.find(c => c[0] === order.column));
}

// ---- the table ----
/** Returns a function that gives the number of a run's colour, for color(). If runs are grouped, it is the group's. */
function curveColors() {
  const shown = shownRuns();
  if (!view.group || shown.length < 2) return colorOf;
  const colors = new Map(groups(shown).flatMap(([, list], i) => list.map(run => [run, i])));
  return run => colors.get(run);
}
function runCell(run, colorOfCurve) {
  const show = () => (run.shown = true, chosen = run.name, update(), poll?.());
  return [make('input', {type: 'checkbox', 'aria-label': 'show ' + label(run), 'data-key': 'show ' + run.name,
    checked: run.shown, change: e => e.target.checked ? show() : (run.shown = false, update())}), ' ',
  run.shown ? swatch(colorOfCurve(run)) : null,
  make('button', {class: 'plain', title: run.name, 'data-key': 'choose ' + run.name,
    click: show}, run.name),
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
function runTable(rows, columns, live) {
  const head = columns.map(([name]) => {
    const isSorted = name === order.column;
    const sort = isSorted && (order.down ? 'descending' : 'ascending');
    return make('th', {class: /^(reason|notes)$/.test(name) && 'reason', 'aria-sort': sort, scope: 'col'},
      make('button', {'data-key': 'sort ' + name, click: () => {
        order = {column: name, down: isSorted ? !order.down : !/loss|run|trial|state|reason|notes/.test(name)};
        update();
      }}, name, isSorted ? order.down ? ' \u25be' : ' \u25b4' : ''));
  });
  const colorOfCurve = curveColors();
  const withActions = live || (sweep && !token);
  const body = rows.map(run => {
    const [name, ...cells] = columns.map(([, value, text], i) =>
      make('td', {}, i ? text(value(run), run) : runCell(run, colorOfCurve)));
    return make('tr', {class: run.name === chosen && 'chosen'}, name,
      withActions ? make('td', {}, actions(run, live)) : null, cells);
  });
  return make('table', {}, make('thead', {}, make('tr', {}, head[0],
    withActions ? make('th', {scope: 'col', 'aria-label': 'pages'}) : null, head.slice(1))), make('tbody', {}, body));
}

// ---- CSV ----
/** Returns a field of a CSV file. A text that a spreadsheet would take for a formula gets a quote in front. */
function csvField(x) {
  if (isMissing(x)) return '';
  if (typeof x === 'number') return String(x);
  const text = (typeof x === 'string' ? x : JSON.stringify(x)).replace(/^[=+\-@\t\r]/, "'$&");
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}
const csv = rows => rows.map(row => row.map(csvField).join(',') + '\n').join('');
function saveCsv(name, rows) {
  const url = URL.createObjectURL(new Blob([csv(rows)], {type: 'text/csv'}));
  make('a', {href: url, download: name + '.csv'}).click();
  URL.revokeObjectURL(url);
}
const tableCsv = (rows, columns) =>
  [columns.map(([name]) => name), ...rows.map(run => columns.map(([, value]) => value(run)))];
