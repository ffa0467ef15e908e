'use strict';
// The whole page: its update, its controls, and the data, from the file or from the monitor.

// ---- update of the page ----
let poll = null, drawnParts = null;
function update() {
  const all = [...runs.values()], shown = shownRuns(), live = poll !== null;
  const focus = document.activeElement?.dataset?.key;
  const run = shown.find(r => r.name === chosen) ?? shown[0];
  chosen = run?.name ?? null;
  $('runs').hidden = all.length < 2 && !live && !sweep;
  $('runs').querySelector('h2').textContent = sweep ? 'Trials' : 'Runs';
  if (!$('runs').hidden) {
    const columns = columnsOf(all, live);
    $('runs').querySelector('.scroll').replaceChildren(runTable(tableRuns(all, columns), columns, live));
  }
  addMetricCharts(all);
  updateCharts(shown);
  $('axis').options[0].disabled = axis() !== view.axis;
  $('axis').value = axis();
  const subject = sweep ?? run, title = subject?.name ?? (live ? 'runs' : 'no data');
  document.title = title + ' \u2013 ringgrad';
  $('title').replaceChildren(title, ' ', subject?.state ? stateOf(subject) : '', ' ',
    (run && !sweep && stopButton(run)) || '');
  $('origin').replaceChildren(...originOf(subject ?? {}));
  const states = all.map(r => r.state);
  const counts = [...new Set(states)].map(state => `${states.filter(s => s === state).length} ${state}`);
  $('summary').textContent = sweep ? [sweep.summary, counts.join(', ')].filter(Boolean).join('; ') :
    run?.summary ?? (live && !all.length ? 'No run yet.' : '');
  if (sweep && live) $('summary').append(' ', make('a', {href: '../../?token=' + token}, 'all runs'));
  $('chosen').replaceChildren(...(sweep && run ? [make('h2', {}, label(run), ' ', stateOf(run))] : []),
    ...(run?.note ? [make('p', {class: run.state === 'failed' ? 'bad' : 'dim'}, run.note)] : []));
  // Hide the charts if all shown runs are sweeps, which have no curves of their own.
  $('tiles').hidden = $('charts').hidden = $('view').hidden = shown.length > 0 && shown.every(r => r.trials);
  if ($('charts').hidden) $('chosen').append(make('a', {href: trialsAddress(run), 'data-key': 'its trials'},
    'trials of this sweep'));
  updateTiles();
  // Parts change when an epoch ends, the report is written again, or a state changes. Else they stay, so that open and
  // focused elements stay too.
  const currentParts = [run?.name, run?.epochs.length, run?.written, run?.state, sweep?.state, sweep?.best].join(' ');
  if (currentParts !== drawnParts) {
    const open = [...document.querySelectorAll('#parts details')].map(d => d.open);
    $('parts').replaceChildren(...partsOf(run, sweep));
    document.querySelectorAll('#parts details').forEach((d, i) => d.open = open[i] ?? false);
    drawnParts = currentParts;
  }
  if (focus) document.querySelector(`[data-key=${CSS.escape(focus)}]`)?.focus({preventScroll: true});
}
function updateTiles() {
  $('tiles').replaceChildren(...(runs.has(chosen) ? tiles(runs.get(chosen)) : []));
}
/** Returns the time of the begin, the version and the command line of a run, as far as its report has them. */
function originOf({begun, build, command}) {
  const parts = [isNumber(begun) ? 'begun ' + new Date(1000 * begun).toLocaleString('en-GB') : null,
    isText(build) ? 'version ' + build.split(',')[0] : null,
    isText(command) && command ? make('code', {}, command) : null].filter(Boolean);
  return parts.flatMap((text, i) => i ? ['; ', text] : [text]);
}
$('filter').addEventListener('input', () => update());
const setShown = value => () => {
  for (const run of tableRuns([...runs.values()], columnsOf([...runs.values()], poll !== null))) run.shown = value;
  update();
  poll?.();
};
$('show-all').addEventListener('click', setShown(true));
$('show-none').addEventListener('click', setShown(false));
for (const name of ['axis', 'steps']) $(name).addEventListener('change', e => setView(name, e.target.value));
$('smoothing').addEventListener('input', e => setView('smoothing', Number(e.target.value)));
$('unzoom').addEventListener('click', () => setZoom(null));

// For printing: the width of the paper is unknown, so draw the charts for half a page. The browser scales them.
addEventListener('beforeprint', () => {
  document.querySelectorAll('#parts details').forEach(d => d.open = true);
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

// ---- answers of the monitor ----
const MAX_FOLLOWED = 20; // while fewer runs than this are shown, a run that starts is shown at once
let answeredSince = ''; // the member "since" of the last answer
let drawnStates = ''; // the members of all runs in the last answer, without their data
/**
 * Merges an answer of the monitor into the runs. Returns `more` if the monitor has more data already, and `changed` if
 * the page must be drawn again.
 */
function mergeAnswer({runs: news, sweep: newSweep, now: time, since}) {
  const first = !runs.size, states = [];
  let changed = newSweep !== undefined;
  if (newSweep) sweep = {...sweep, ...newSweep};
  if (isNumber(time)) clockOffset = time - Date.now() / 1000;
  answeredSince = since ?? '';
  for (const {name, report, metrics, whole, row, ...rest} of news) {
    const isNew = !runs.has(name), run = runOf(name);
    if (row) Object.assign(run, row, {config: {...run.config, ...row.config}});
    if (isNew && !first && rest.alive && shownRuns().length < MAX_FOLLOWED) run.shown = true;
    if (whole) Object.assign(run, noLines());
    if (report) mergeReport(run, report);
    if (metrics) addLines(run, metrics);
    Object.assign(run, rest); // overwrites the state in the report, since the monitor's state is newer
    const {at, more, ...state} = rest;
    states.push(state);
    changed ||= Boolean(row || report || metrics?.length || whole);
    if (run.alive) noteProgress(run);
    else run.stopping = false;
  }
  const names = new Set(news.map(run => run.name));
  for (const name of runs.keys()) if (!names.has(name)) runs.delete(name);
  const newStates = JSON.stringify(states);
  if (newStates !== drawnStates) drawnStates = newStates, changed = true;
  if (shownRuns().length || !first) return {more: news.some(run => run.more), changed};
  [...runs.values()].forEach((run, i) => run.shown = run.alive || (sweep !== null && i < 64));
  if (!shownRuns().length && news.length) runOf(news[0].name).shown = true; // the newest run
  chosen ??= sweep?.best ?? shownRuns().find(run => run.alive)?.name ?? null;
  return {more: shownRuns().length > 0, changed};
}
const MAX_NEW = 50; // most runs per query of which the page has no data yet: a small answer lets it draw soon
const MAX_QUERY = 8000; // characters; the monitor refuses addresses above 16 KiB
/** Returns queries for new data of all shown runs, each of about MAX_QUERY characters at most; at least one. */
function queries() {
  const all = [''];
  let unknown = 0;
  for (const run of shownRuns()) {
    const term = `run.${encodeURIComponent(run.name)}=${encodeURIComponent(run.at ?? '')}&`;
    unknown += !run.at;
    if (last(all).length + term.length > MAX_QUERY || unknown > MAX_NEW) all.push(''), unknown = +!run.at;
    all[all.length - 1] += term;
  }
  return all;
}
/** Returns the part of a query that does not depend on the runs in it. */
const sharedQuery = () => 'since=' + answeredSince + (sweep ? '&sweep=' + encodeURIComponent(sweep.version) : '');
function watch() {
  let timer, busy = false;
  poll = async () => {
    if (busy) return;
    busy = true;
    clearTimeout(timer);
    let more = false;
    try {
      for (const query of queries()) {
        const answer = await ask('data?' + query + sharedQuery());
        if (!answer.ok) throw new Error(await answer.text());
        const merged = mergeAnswer(await answer.json());
        more ||= merged.more;
        if (merged.changed) update();
        else updateTiles();
      }
      $('message').textContent = '';
    } catch (error) {
      $('message').textContent = 'No answer from the monitor (' + error.message + '); trying again.';
    }
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
  // The file may be old, so do not show that a run is running.
  if (!sweep) for (const run of runs.values()) if (run.state === 'running') run.state = '';
  chosen = sweep?.best ?? null;
  update();
}
