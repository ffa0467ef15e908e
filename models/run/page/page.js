'use strict';
// The whole page: the table of runs, the choice of shown runs, and the data, from the file or from the monitor.

// ---- the table of runs ----
let order = {column: null, down: false};
const stateOf = run => make('span', {class: 'state ' + (/^(running|failed)$/.exec(run.state)?.[0] ?? '')}, run.state);
function columnsOf(list, live) {
  // Every option that differs between the runs gets a column.
  const names = new Set(list.flatMap(run => Object.keys(run.config?.options ?? {})));
  const varied = [...names].filter(name => !/^(run-name|runs)$/.test(name) &&
    new Set(list.map(run => JSON.stringify(option(run, name))).filter(Boolean)).size > 1);
  const set = testSetName(...list);
  return [ // heading, function for the value, function for its text or element
    [sweep ? 'trial' : 'run', run => run.name, String],
    ...(live || sweep ? [['state', run => run.state, (_, run) => run.state ? stateOf(run) : '']] : []),
    ...varied.map(name => [name, run => option(run, name), x => isNumber(x) ? digits(x) : String(x ?? '\u2013')]),
    ['epoch', run => lastEpoch(run)?.epoch, count],
    ['train loss', run => lastEpoch(run)?.train_loss, digits],
    [set + ' loss', run => lastEpoch(run)?.test_loss, digits],
    [set + ' accuracy', run => lastEpoch(run)?.test_accuracy, percent],
    ['best', run => best(run, 'test_accuracy'), percent],
    ['images/s', run => lastEpoch(run)?.images_per_s, count],
    ...(list.some(run => run.note) ? [['reason', run => run.note, x => make('div', {class: 'note'}, x ?? '')]] : [])];
}
function sorted(list, column) {
  if (!column) return list;
  const isMissing = v => v == null || v !== v || v === -Infinity; // missing values come last
  return [...list].sort((a, b) => {
    const [x, y] = [column[1](a), column[1](b)];
    if (isMissing(x) || isMissing(y)) return isMissing(x) - isMissing(y);
    const ascending = isNumber(x) && isNumber(y) ? x - y : String(x).localeCompare(String(y), 'en', {numeric: true});
    return order.down ? -ascending : ascending;
  });
}
function runCell(run, shown) {
  const show = () => (run.shown = true, chosen = run.name, update(), poll?.());
  return [make('input', {type: 'checkbox', 'aria-label': 'show ' + label(run), 'data-key': 'show ' + run.name,
    checked: run.shown, change: e => e.target.checked ? show() : (run.shown = false, update())}), ' ',
  run.shown ? swatch(shown.indexOf(run)) : null,
  make('button', {class: 'plain', 'data-key': 'choose ' + run.name, click: show}, run.name),
  run.name === sweep?.best ? ' (best)' : null];
}
/** Returns the address of a page of the monitor. */
const address = (path, run) => `${path}token=${token}`.replace('NAME', () => encodeURIComponent(run.name));
function runTable(list, live) {
  const columns = columnsOf(list, live), shown = shownRuns();
  const head = columns.map(([name]) => {
    const isSorted = name === order.column;
    const sort = isSorted && (order.down ? 'descending' : 'ascending');
    return make('th', {class: name === 'reason' && 'reason', 'aria-sort': sort},
      make('button', {'data-key': 'sort ' + name, click: () => {
        order = {column: name, down: isSorted ? !order.down : !/loss|run|trial|state|reason/.test(name)};
        update();
      }}, name, isSorted ? order.down ? ' \u25be' : ' \u25b4' : ''));
  });
  const link = (run, text, path) => make('a', {href: address(path, run), 'data-key': `${text} ${run.name}`}, text);
  const actions = run => [stopButton(run), ' ', run.page ? link(run, 'report', 'report?run=NAME&') : null, ' ',
    run.trials ? link(run, 'trials', 'trials/NAME/?') : null];
  const rows = sorted(list, columns.find(c => c[0] === order.column)).map(run => {
    const [name, ...cells] = columns.map(([, value, text], i) =>
      make('td', {}, i ? text(value(run), run) : runCell(run, shown)));
    return make('tr', {class: run.name === chosen && 'chosen'}, name,
      live ? make('td', {}, actions(run)) : null, cells);
  });
  return make('table', {}, make('thead', {}, make('tr', {}, head[0], live ? make('th') : null, head.slice(1))),
    make('tbody', {}, rows));
}

// ---- update of the page ----
let poll = null, drawnParts = null;
function update() {
  const all = [...runs.values()], shown = shownRuns(), live = poll !== null;
  const focus = document.activeElement?.dataset?.key;
  const run = shown.find(r => r.name === chosen) ?? shown[0];
  chosen = run?.name ?? null;
  $('runs').hidden = all.length < 2 && !live && !sweep;
  $('runs').firstChild.textContent = sweep ? 'Trials' : 'Runs';
  if (!$('runs').hidden) $('runs').lastChild.replaceChildren(runTable(all, live));
  for (const chart of charts) chart.update(shown);
  const subject = sweep ?? run, title = subject?.name ?? (live ? 'runs' : 'no data');
  document.title = title + ' \u2013 ringgrad';
  $('title').replaceChildren(title, ' ', subject?.state ? stateOf(subject) : '', ' ',
    (run && !sweep && stopButton(run)) || '');
  const states = all.map(r => r.state);
  const counts = [...new Set(states)].map(state => `${states.filter(s => s === state).length} ${state}`);
  $('summary').textContent = sweep ? [sweep.summary, counts.join(', ')].filter(Boolean).join('; ') :
    run?.summary ?? (live && !all.length ? 'No run yet.' : '');
  if (sweep && live) $('summary').append(' ', make('a', {href: '../../?token=' + token}, 'all runs'));
  $('chosen').replaceChildren(...(sweep && run ? [make('h2', {}, label(run), ' ', stateOf(run))] : []),
    ...(run?.note ? [make('p', {class: run.state === 'failed' ? 'bad' : 'dim'}, run.note)] : []));
  // Hide the charts if all shown runs are sweeps, which have no curves of their own.
  $('tiles').hidden = $('charts').hidden = shown.length > 0 && shown.every(r => r.trials);
  if ($('charts').hidden) $('chosen').append(make('a', {href: address('trials/NAME/?', run), 'data-key': 'its trials'},
    'trials of this sweep'));
  $('tiles').replaceChildren(...(run ? tiles(run) : []));
  // Parts change once per epoch. Between changes they stay, so that open and focused elements stay too.
  const currentParts = [run?.name, run?.epochs.length, run?.state, sweep?.state, sweep?.best].join(' ');
  if (currentParts !== drawnParts) {
    const open = [...document.querySelectorAll('#parts details')].map(d => d.open);
    $('parts').replaceChildren(...partsOf(run, sweep));
    document.querySelectorAll('#parts details').forEach((d, i) => d.open = open[i] ?? false);
    drawnParts = currentParts;
  }
  if (focus) document.querySelector(`[data-key=${CSS.escape(focus)}]`)?.focus({preventScroll: true});
}
// The width of the paper is unknown, so draw the curves for half a page; the browser scales them.
addEventListener('beforeprint', () => {
  document.querySelectorAll('details').forEach(d => d.open = true);
  charts.forEach(chart => chart.draw(350, 240));
});
addEventListener('afterprint', () => charts.forEach(chart => chart.draw()));

// ---- live page: asks the monitor for new data once per second ----
const token = new URLSearchParams(location.search).get('token');
const ask = (path, options) => fetch(path, {...options, headers: {'X-Token': token}});
function stopButton(run) {
  if (!run.alive) return null;
  const stop = async () => {
    run.stopping = true;
    update();
    const answer = await ask('stop?run=' + encodeURIComponent(run.name), {method: 'POST'}).catch(() => null);
    if (answer?.ok) return;
    run.stopping = false;
    $('message').textContent = 'Stop was refused: ' + (answer ? await answer.text() : 'no connection');
  };
  return make('button', {class: 'stop', disabled: run.stopping, 'aria-label': 'stop ' + label(run),
    'data-key': 'stop ' + run.name, click: stop}, run.stopping ? 'stopping' : 'Stop');
}
/** Merges an answer of the monitor into the runs. Returns true if the monitor has more data already. */
function mergeAnswer({runs: news, sweep: newSweep}) {
  const first = !runs.size;
  if (newSweep) sweep = {...sweep, ...newSweep};
  for (const {name, report, metrics, whole, ...rest} of news) {
    const run = runOf(name);
    if (whole) run.steps = [], run.epochs = [];
    if (report) mergeReport(run, report);
    if (metrics) addLines(run, metrics);
    Object.assign(run, rest); // overwrites the state of the report, since the monitor's is newer
    if (!run.alive) run.stopping = false;
  }
  const names = new Set(news.map(run => run.name));
  for (const name of runs.keys()) if (!names.has(name)) runs.delete(name);
  if (shownRuns().length || !first) return news.some(run => run.more);
  [...runs.values()].forEach((run, i) => run.shown = run.alive || (sweep !== null && i < 64));
  if (!shownRuns().length && news.length) runOf(news[0].name).shown = true; // the newest run
  chosen ??= sweep?.best ?? shownRuns().find(run => run.alive)?.name ?? null;
  return shownRuns().length > 0;
}
const MAX_QUERY = 8000; // characters; the monitor refuses addresses above 16 KiB
/** Returns queries for new data of all shown runs, each of about MAX_QUERY characters at most; at least one. */
function queries() {
  const all = [''];
  for (const run of shownRuns()) {
    const term = `${encodeURIComponent(run.name)}=${encodeURIComponent(run.at ?? '')}&`;
    if (all.at(-1).length + term.length > MAX_QUERY) all.push('');
    all[all.length - 1] += term;
  }
  return all.map(query => sweep ? `${query}sweep=${encodeURIComponent(sweep.version)}` : query);
}
function watch() {
  let timer, busy = false;
  poll = async () => {
    if (busy) return;
    busy = true;
    clearTimeout(timer);
    let more = false;
    try {
      for (const query of queries()) {
        const answer = await ask('data?' + query);
        if (!answer.ok) throw new Error(await answer.text());
        more = mergeAnswer(await answer.json()) || more;
      }
      $('message').textContent = '';
    } catch (error) {
      $('message').textContent = 'No answer from the monitor (' + error.message + '); trying again.';
    }
    update();
    busy = false;
    timer = setTimeout(poll, more ? 0 : 1000);
  };
  poll();
}

const data = JSON.parse($('data').textContent);
if (data?.live) watch();
else {
  sweep = data?.sweep ?? null;
  (data?.runs ?? []).forEach((report, i) =>
    mergeReport(Object.assign(runOf(report.name ?? 'run ' + (i + 1)), {shown: true}), report));
  // The file may be old, so it does not show that a run is running.
  if (!sweep) for (const run of runs.values()) if (run.state === 'running') run.state = '';
  chosen = sweep?.best ?? null;
  update();
}
