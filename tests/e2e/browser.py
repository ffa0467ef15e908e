# Tests the page of a run in a real browser, from its file and from the monitor. SHOTS=DIR keeps pictures of all widths
# and colours.
import base64
import json
import os
import pathlib
import random
import runpy
import signal
import sys
import urllib.parse

import chromium
import job

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATE = runpy.run_path(str(ROOT / "models" / "run" / "page" / "join.py"))["template"]()
# Reads the table of runs: an object per row, with the headings as keys.
TABLE = ("(() => { const head = [...document.querySelectorAll('#runs th')]"
         "    .map(h => h.textContent.replace(/[^a-z0-9/ ]/g, '').trim());"
         "return [...document.querySelectorAll('#runs tbody tr')]"
         "    .map(r => Object.fromEntries([...r.children].map((d, i) => [head[i], d.textContent.trim()]))); })()")
CURVE = "[...document.querySelectorAll('#charts section')].find(s => s.textContent.startsWith('Loss')).querySelector('path')"


class BrowserTest(job.JobTest):
    def setUp(self):
        super().setUp()
        self.browser = chromium.Browser(self.folder / "profile", job.LIMIT)
        self.addCleanup(self.browser.close)

    def tearDown(self):
        self.assertEqual(self.browser.complaints, [])

    def page_of(self, data):
        """Writes the page with this data and returns its address."""
        path = self.folder / "page.html"
        text = json.dumps(data).replace("<", "\\u003c")
        path.write_text(TEMPLATE.replace(">null</script>", f">{text}</script>", 1))
        return path.as_uri()

    def assert_fits(self, page):
        if "SHOTS" in os.environ:
            name = f"{self._testMethodName}-{page.width}{'-dark' if page.dark else ''}.png"
            pathlib.Path(os.environ["SHOTS"], name).write_bytes(page.picture())
        self.assertLessEqual(page.value("document.documentElement.scrollWidth"), page.width)


class Frozen(BrowserTest):
    def test_training(self):
        run = self.train(1, "run", *job.TINY, "--epochs", "3")
        self.assertLess((run / "report.html").stat().st_size, 300_000)
        epochs = job.epoch_lines(run)
        backgrounds = set()
        for width in (1280, 400):
            for dark in (False, True):
                page = self.browser.open((run / "report.html").as_uri(), width, dark)
                page.wait("document.querySelectorAll('#charts path').length >= 9")
                self.assertEqual(page.value("document.querySelector('h1').textContent.trim()"), "run done")
                cells = page.value("[...document.querySelectorAll('.confusion tbody tr')]"
                                   ".map(r => [...r.querySelectorAll('td')].map(d => d.textContent))")
                self.assertEqual([row[10] for row in cells], 10 * ["20"])
                right = sum(int(cells[i][i] or 0) for i in range(10))
                self.assertAlmostEqual(right / 200, epochs[-1]["test_accuracy"])
                self.assertEqual(page.value("document.querySelectorAll('canvas').length"), 24)
                # The pixels of the first image are those of the first mistake in the data.
                self.assertTrue(page.value(
                    "(() => { const m = data.runs[0].confusion.mistakes[0], b = atob(m.pixels);"
                    "const c = document.querySelector('canvas').getContext('2d').getImageData(0, 0, 32, 32).data;"
                    "return [...Array(3072).keys()].every(i => c[4 * Math.floor(i / 3) + i % 3] === b.charCodeAt(i)); })()"))
                self.assertIn("rank", page.value("document.getElementById('parts').textContent"))
                self.assert_fits(page)
                backgrounds.add((dark, page.value("getComputedStyle(document.body).backgroundColor")))
        self.assertEqual(len({colour for _, colour in backgrounds}), 2)

    def test_long_training(self):
        # Use as much data as a report of 50 epochs has: curves of 2000 points, and 24 images.
        chance = random.Random(1)
        steps = [{"step": 5 * i, "epoch": 1 + (i - 1) // 40, "loss": 2.3 - i / 1000 + chance.gauss(0, 0.1),
                  "accuracy": i / 2200, "lr": 0.1 * (1 - i / 2000)} for i in range(1, 2001)]
        epochs = [{"epoch": e, "train_loss": 2.3 / e ** 0.5, "train_accuracy": 1 - 0.9 / e ** 0.5,
                   "test_loss": 2.4 / e ** 0.4, "test_accuracy": 1 - 0.9 / e ** 0.4,
                   "images_per_s": 1000 + chance.gauss(0, 9), "seconds": 50.0} for e in range(1, 51)]
        metrics = [line for e in range(50) for line in (*steps[40 * e:40 * e + 40], epochs[e])]
        mistakes = [{"image": i, "truth": job.CLASSES[i % 10], "seen": job.CLASSES[(i + 1) % 10], "score": 0.99 - i / 100,
                     "pixels": base64.b64encode(chance.randbytes(3072)).decode()} for i in range(24)]
        counts = [[850 if i == j else 10 + i + j for j in range(10)] for i in range(10)]
        confusion = {"classes": job.CLASSES, "counts": counts, "height": 32, "width": 32, "channels": 3,
                     "mistakes": mistakes}
        ranks = [{"rank": i, "host": "host", "images": 12500, "steps": 200, "seconds":
                  {"data": 1.5, "compute": 40.0 + i, "sum": 5.0 - i, "update": 2.0}} for i in range(4)]
        tensors = [[f"block{b}.{i}.{name}", [64]] for b in (1, 2, 3) for i in range(4)
                   for name in ("conv.weight", "conv.bias", "bn.weight", "bn.bias")]
        network = {"parameters": 677610, "parameter_bytes": 2710440, "planned_bytes": 30 << 20,
                   "unshared_bytes": 90 << 20, "tensors": tensors}
        url = self.page_of({"runs": [{
            "name": "long", "state": "done", "summary": "a training of 50 epochs", "epochs": 50, "steps_per_epoch": 200,
            "config": {"options": {f"option-{i}": i for i in range(40)}}, "metrics": metrics, "confusion": confusion,
            "ranks": ranks, "network": network}]})
        size = (self.folder / "page.html").stat().st_size
        self.assertLess(size, 1_000_000)
        for width in (1280, 400):
            for dark in (False, True):
                page = self.browser.open(url, width, dark)
                page.wait("document.querySelectorAll('canvas').length === 24")
                self.assertEqual(page.wait(f"{CURVE}?.getAttribute('d').split('L').length"), 400)  # means of 5 steps
                self.assert_fits(page)
                loaded = page.value("performance.getEntriesByType('navigation')[0].loadEventEnd")
                print(f"a report of 50 epochs, {size} bytes, {width} px: loaded after {loaded:.0f} ms", flush=True)

    def test_printed(self):
        epochs = [{"epoch": e, "train_loss": 1 / e, "train_accuracy": 0.5, "images_per_s": 9, "seconds": 9}
                  for e in range(1, 6)]
        page = self.browser.open(self.page_of({"runs": [{"name": "run", "metrics": epochs}]}))
        page.wait(CURVE)
        # Paper has another width than the window, and scripts do not run again for printing.
        charts = page.value(
            "(() => { dispatchEvent(new Event('beforeprint')); document.body.style.width = '700px';"
            "const right = e => e.getBoundingClientRect().right;"
            "return charts.map(c => [c.svg.viewBox.baseVal.width, c.svg.clientWidth, right(c.svg),"
            "    ...[...c.svg.children].map(right)]); })()")
        self.assertEqual(len(charts), 5)
        for drawn, width, edge, *parts in charts:
            self.assertEqual(drawn, 350)
            self.assertLess(width, 350)
            self.assertLessEqual(max(parts), edge + 1)
        # After printing, the page is as before.
        self.assertEqual(page.value(
            "(() => { document.body.style.width = ''; dispatchEvent(new Event('afterprint'));"
            "return charts.filter(c => c.svg.viewBox.baseVal.width !== c.svg.clientWidth).length; })()"), 0)
        self.assertGreater(len(page.call("Page.printToPDF")["data"]), 10_000)

    def test_by_keyboard(self):
        run = self.train(1, "run", *job.TINY, "--epochs", "3")
        page = self.browser.open((run / "report.html").as_uri())
        page.wait(CURVE)
        page.value("document.querySelector('svg').focus()")
        page.press("End")
        text = page.wait("document.querySelector('output').textContent")
        self.assertIn("epoch 3", text)
        self.assertIn(f"test {job.epoch_lines(run)[-1]['test_loss']:.4g}".rstrip("0"), text)
        page.press("ArrowLeft")
        self.assertIn("epoch 2", page.value("document.querySelector('output').textContent"))

    def test_hidden_classes_count_in_sums(self):
        confusion = {"classes": ["a", "b"], "counts": [[3, 1], [0, 2]], "images": [8, 4], "seen": [5, 3], "right": 50,
                     "total": 100, "left_out": 4998, "height": 1, "width": 1, "channels": 1, "mistakes": []}
        page = self.browser.open(self.page_of({"runs": [{"name": "many", "confusion": confusion}]}))
        page.wait("document.querySelector('.confusion')")
        text = page.value("document.getElementById('parts').textContent")
        self.assertIn("50 of 100 correct", text)
        self.assertRegex(text, "omits the 4.?998 others")
        self.assertEqual(page.value("[...document.querySelectorAll('.confusion tbody .sum')].map(d => d.textContent)"),
                         ["8", "4"])
        self.assertEqual(page.value("[...document.querySelectorAll('.confusion tbody tr')].map(r => r.lastChild."
                                    "textContent.slice(0, 2))"), ["37", "50"])

    def test_names_are_text(self):
        evil = "</script><img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
        confusion = {"classes": [evil, "b"], "counts": [[1, 1], [0, 1]], "height": 1, "width": 1, "channels": 1, "mistakes": [
            {"image": 0, "truth": evil, "seen": "b", "score": None, "pixels": "/w=="}]}
        ranks = [{"rank": 0, "host": evil, "images": 1, "steps": 1, "seconds": {evil: 1, "compute": 1}}]
        page = self.browser.open(self.page_of({"runs": [
            {"name": evil, "state": evil, "summary": evil, "config": {evil: evil, "options": {evil: i}}, "confusion": confusion,
             "ranks": ranks, "network": {"parameters": 1, "tensors": [[evil, [1]]]}, "metrics": [{evil: 1}]} for i in (1,)]}))
        page.wait("document.querySelectorAll('canvas').length")
        self.assertEqual(page.value("document.querySelectorAll('img').length"), 0)
        self.assertIsNone(page.value("window.hacked"))
        self.assertIn(evil, page.value("document.querySelector('h1').textContent"))

    def test_empty_and_non_finite_metrics(self):
        self.browser.open(self.page_of(None)).wait("document.querySelector('h1').textContent.includes('no data')")
        page = self.browser.open(self.page_of({"runs": [{"name": "empty"}]}))
        page.wait("document.body.textContent.includes('no data yet')")
        page.value("document.querySelector('svg').focus()")
        page.press("End")
        steps = [{"step": i, "epoch": 1, "loss": 1.0 if i < 3 else None, "accuracy": 0.1, "lr": 0.1} for i in range(1, 5)]
        page = self.browser.open(self.page_of({"runs": [{"name": "bad", "steps_per_epoch": 4, "metrics": [
            *steps, {"epoch": 1, "train_loss": None, "train_accuracy": 0.1, "test_loss": None, "test_accuracy": 0.1}]}]}))
        self.assertIn("not finite", page.value("document.getElementById('tiles').textContent"))
        self.assertNotIn("NaN", page.value("document.body.innerHTML.replace(/<script[^]*?<\\/script>/g, '')"))
        # These values are so large and close that no round number is between them. Some steps are not numbers.
        for losses, at in (((1e17, 1e17 + 16), (1, 2)), ((1, 2), ("x", None))):
            page = self.browser.open(self.page_of({"runs": [{"name": "odd", "metrics": [
                {"step": i, "epoch": 1, "loss": loss} for i, loss in zip(at, losses)]}]}))
            page.wait("document.querySelectorAll('#charts section').length")

    def test_trials(self):
        trials = [{"name": f"trial {i}", "config": {"options": {"lr": lr, "same": 1}}, "metrics": [
            {"epoch": e, "train_loss": 1 / e, "test_loss": 2 / e, "train_accuracy": 0.5, "test_accuracy": accuracy} for e in (1, 2)]}
                  for i, (lr, accuracy) in enumerate([(0.1, 0.5), (0.01, 0.9), (1.0, 0.1)], 1)]
        page = self.browser.open(self.page_of({"runs": trials}))
        names = "[...document.querySelectorAll('#runs tbody tr')].map(r => r.querySelector('button').textContent)"
        head = page.wait("[...document.querySelectorAll('#runs th')].map(h => h.textContent)")
        self.assertIn("lr", head)
        self.assertNotIn("same", head)
        self.assertEqual(page.value(CURVE + ".parentNode.querySelectorAll('path').length"), 6)
        for column, order in (("best", [2, 1, 3]), ("best", [3, 1, 2]), ("lr", [3, 1, 2]), ("run", [1, 2, 3])):
            page.value(f"document.querySelector('[data-key=\"sort {column}\"]').click()")
            self.assertEqual(page.value(names), [f"trial {i}" for i in order], column)
        page.value("document.querySelector('#runs input').click()")
        self.assertEqual(page.value(CURVE + ".parentNode.querySelectorAll('path').length"), 4)


    def test_sweep_page(self):
        # Trial 2 fails: its first loss is not finite. A rule stops trial 3.
        self.succeed([str(job.BUILD / "sweep_cifar"), "--run-name", "sweep", *job.TINY, "--epochs", "3",
                      "--batch-size", "50", "--grid", "lr=0.05,1e30,1e-9", "--stop-below", "12",
                      "--stop-below-after", "2"])
        run = self.runs / "sweep"
        trials = [job.epoch_lines(run / "trials" / str(i)) for i in (1, 2, 3)]
        self.assertEqual([len(epochs) for epochs in trials], [3, 0, 2])
        for width in (1280, 400):
            page = self.browser.open((run / "report.html").as_uri(), width)
            page.wait(CURVE)
            self.assertEqual(page.value("document.querySelector('h1').textContent.trim()"), "sweep done")
            summary = page.value("document.getElementById('summary').textContent")
            self.assertIn("1 finished, 1 failed, 1 stopped", summary)
            # There is a row per trial. The failed one has a colour and a reason.
            cells = page.value(TABLE)
            self.assertEqual([row["trial"] for row in cells], ["1 (best)", "2", "3"])
            self.assertEqual([row["state"] for row in cells], ["finished", "failed", "stopped"])
            self.assertEqual([row["lr"] for row in cells], ["0.05", "1.00e+30", "1.00e-9"])
            self.assertIn("expected finite values", cells[1]["reason"])
            self.assertEqual([cells[0]["reason"], cells[2]["reason"]], ["", "below 12 %"])
            colours = page.value("[...document.querySelectorAll('#runs .state')].map(s => getComputedStyle(s).color)")
            self.assertNotEqual(colours[0], colours[1])
            self.assertEqual(cells[0]["validation loss"], page.value(f"digits({trials[0][-1]['validation_loss']})"))
            # Two trials have curves, for training and validation. A click sorts the rows.
            self.assertEqual(page.value(CURVE + ".parentNode.querySelectorAll('path').length"), 4)
            page.value("document.querySelector('[data-key=\"sort validation loss\"]').click()")
            worse = trials[0][-1]["validation_loss"] > trials[2][-1]["validation_loss"]
            self.assertEqual([row["trial"][0] for row in page.value(TABLE)], ["3", "1", "2"] if worse else ["1", "3", "2"])
            page.value("document.querySelector('[data-key=\"sort state\"]').click()")
            self.assertEqual([row["state"] for row in page.value(TABLE)], ["failed", "finished", "stopped"])
            # The page shows the best trial's test results, and then the validation results of the selected trial.
            rows = [line.split(",") for line in (run / "confusion.csv").read_text().splitlines()[1:]]
            right = sum(int(row[1 + i]) for i, row in enumerate(rows))
            headings = "[...document.querySelectorAll('#parts h2')].map(h => h.textContent)"
            self.assertEqual(page.value(headings)[0], f"Best: trial 1, on the test set: {right} of 200 correct")
            page.value("document.querySelector('[data-key=\"choose 3\"]').click()")
            self.assertIn("trial 3, confusion on the validation set", " ".join(page.value(headings)))
            self.assertIn("below 12 %", page.value("document.getElementById('chosen').textContent"))
            self.assert_fits(page)

    def test_failed_curve_ends_in_a_cross(self):
        runs = [{"name": str(i), "state": state, "tested": "validation", "note": state * i, "metrics": [
            {"epoch": e, "train_loss": 1 / e, "validation_loss": 2 / e} for e in range(1, 6 - i)]}
                for i, state in enumerate(["finished", "failed", "queued"])]
        page = self.browser.open(self.page_of({"sweep": {"name": "s", "state": "done", "best": "0"}, "runs": runs}))
        page.wait(CURVE)
        self.assertEqual(page.value("document.querySelectorAll('svg .failed').length"), 1)
        self.assertEqual(page.value(TABLE)[1]["validation loss"], "0.5")

    def test_bars(self):
        groups = [{"name": "training", "bars": [["a", 2.0], ["b", 1.0]], "note": "2 times"}, {"name": "x", "bars": [["a", 0]]}]
        bars = {"title": "Before <b>", "unit": "s", "groups": groups}
        page = self.browser.open(self.page_of({"runs": [{"name": "run", "bars": bars}]}))
        page.wait("document.querySelectorAll('.bar i').length === 3")
        widths = "[...document.querySelectorAll('.bar i')].map(i => i.getBoundingClientRect().width)"
        long, short, _ = page.value(widths)
        self.assertAlmostEqual(long / short, 2, delta=0.05)


class Live(BrowserTest):
    def test_sweep(self):
        monitor = self.start([sys.executable, str(ROOT / "tools" / "monitor"), "--port", "0"])
        url = monitor.stdout.readline().strip()
        sweep = self.start([str(job.BUILD / "sweep_cifar"), "--run-name", "a sweep", *job.TINY, "--epochs", "100000",
                            "--batch-size", "50", "--grid", "lr=1e30,0.05,0.01"])
        # In the list of runs, a sweep is one run with a page of its trials.
        page = self.browser.open(url)
        page.wait("document.querySelector('#runs a[href^=trials]')")
        self.assertFalse(page.value("document.getElementById('charts').checkVisibility()"))  # a sweep has no curves
        trials = page.value("document.querySelector('#runs a[href^=trials]').getAttribute('href')")
        page = self.browser.open(urllib.parse.urljoin(url, trials))
        # The sweep writes the states of its trials once a second, so the page may get the second trial first.
        page.wait("runs.get('1')?.state === 'failed' && runs.get('2')?.state === 'running' && runs.get('2').epochs.length")
        cells = page.value(TABLE)
        self.assertEqual([row["state"] for row in cells], ["failed", "running", "queued"])
        self.assertIn("expected finite values", cells[0]["reason"])
        self.assertEqual([row["lr"] for row in cells], ["1.00e+30", "0.05", "0.01"])
        self.assertNotIn(cells[1]["validation loss"], ("", "\u2013"))
        self.assertEqual(page.value("document.querySelector('h1').textContent.trim()"), "a sweep running")
        # A click stops a trial, and the next one starts. Then a click in the list stops the whole sweep.
        page.value("document.querySelector('[data-key=\"stop 2\"]').click()")
        page.wait("runs.get('3').state === 'running' && runs.get('3').epochs.length")
        self.assertEqual(page.value("runs.get('2').state + ', ' + runs.get('2').note"), "stopped, on request")
        page = self.browser.open(url)
        page.wait("document.querySelector('#runs button.stop')")
        page.value("document.querySelector('#runs button.stop').click()")
        result = self.finish(sweep)
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("stopped; continue with --resume", result.out)
        page.wait("runs.get('a sweep').state === 'stopped'")

    def test_more_runs_than_fit_in_one_url(self):
        names = [f"{i:03}-" + 200 * "n" for i in range(100)]
        for name in names:
            (self.runs / name).mkdir(parents=True)
            (self.runs / name / "metrics.jsonl").write_text('{"step": 1, "epoch": 1, "loss": 2}\n')
        monitor = self.start([sys.executable, str(ROOT / "tools" / "monitor"), "--port", "0"])
        page = self.browser.open(monitor.stdout.readline().strip())
        page.wait("runs.size === 100")
        page.value("runs.forEach(run => run.shown = true)")
        page.wait("[...runs.values()].every(run => run.steps.length === 1)")
        for name in names:
            with (self.runs / name / "metrics.jsonl").open("a") as file:
                file.write('{"step": 2, "epoch": 1, "loss": 1}\n')
        page.wait("[...runs.values()].every(run => run.steps.length === 2)")
        self.assertEqual(page.value("document.getElementById('message').textContent"), "")

    def test_damaged_runs(self):
        # The list shows runs with damaged reports, a config.json of null, and a name that is not UTF-8. The valid run
        # has a curve.
        steps = "".join(f'{{"step": {i}, "epoch": 1, "loss": {1 / i}}}\n' for i in range(1, 9))
        odd = ({"config": None}, {"config": {"options": None}}, {"confusion": {"classes": 1}}, {"ranks": [1]}, {"bars": {}},
               {"network": {"tensors": [1]}}, {"steps": None, "shown": {}, "epochs": "x", "tested": []},
               {"metrics": [{"epoch": "x", "test_loss": 1e17}]})
        for i, report in enumerate(({}, *odd)):
            run = self.runs / (f"odd-{i}" if i else "good")
            run.mkdir(parents=True)
            (run / "config.json").write_text("null" if i else "{}")
            (run / "metrics.jsonl").write_text(
                steps if i % 2 == 0 else '{"step": "x", "epoch": []}\n{"epoch": {}, "test_loss": 1}\n'
                                         '{"step": 1e400, "loss": 1e299}\n{"step": 9, "loss": 1e400}\n')
            if i:
                (run / "report.html").write_text(
                    f'<script id="data" type="application/json">{json.dumps({"runs": [report]})}</script>')
        os.mkdir(os.fsencode(self.runs) + b"/bad\xff")
        with open(os.fsencode(self.runs) + b"/bad\xff/metrics.jsonl", "w") as file:
            file.write(steps)
        os.utime(self.runs / "good" / "config.json", (4e9, 4e9))
        monitor = self.start([sys.executable, str(ROOT / "tools" / "monitor"), "--port", "0"])
        page = self.browser.open(monitor.stdout.readline().strip())
        names = sorted(["bad\\xff", "good", *(f"odd-{i + 1}" for i in range(len(odd)))])
        page.wait(CURVE)  # the curve of the newest run
        self.assertEqual(page.value("[...runs.keys()].sort()"), names)
        for name in names:
            page.value(f"document.querySelector(`[data-key=\"choose ${{CSS.escape({json.dumps(name)})}}\"]`).click()")
            page.wait(f"chosen === {json.dumps(name)} && runs.get(chosen).steps.length")
        page.wait("shownRuns().length === runs.size")
        self.assertEqual(page.value("document.getElementById('message').textContent"), "")
        self.assertEqual(len(page.value(TABLE)), len(names))

    def test_watch_and_stop(self):
        ranks = job.rank_counts(1, 4)[-1]
        options = ["--width", "8", "--depth", "1", "--epochs", "10000", "--seed", "7"]
        monitor = self.start([sys.executable, str(ROOT / "tools" / "monitor"), "--port", "0"])
        url = monitor.stdout.readline().strip()
        page = self.browser.open(url)
        page.wait("document.body.textContent.includes('No run yet')")
        training = self.start(job.train(ranks, *options, "--run-name", "live <b>"))
        run = self.runs / "live <b>"
        before = page.wait(CURVE + "?.getAttribute('d')")
        page.wait(f"{CURVE}.getAttribute('d') !== {json.dumps(before)}")
        page.wait("document.querySelectorAll('#parts canvas').length")
        self.assertEqual(page.value("document.querySelector('.state').textContent"), "running")

        # Start a second run.
        other = self.start(job.train(1, *options, "--run-name", "other"))
        page.wait("document.querySelector('[data-key=\"show other\"]')")
        page.value("document.querySelector('[data-key=\"show other\"]').click()")
        page.wait("shownRuns().length === 2 && shownRuns().every(r => r.epochs.length)")

        seen = len(job.step_lines(run))
        page.value("document.querySelector('#runs [data-key=\"stop live <b>\"]').click()")
        result = self.finish(training)
        self.assertEqual(result.code, 0, result.err)
        steps = len(job.step_lines(run))
        self.assertIn(f"stopped after step {steps};", result.out)
        self.assertGreaterEqual(steps, seen)
        self.assertFalse((run / "stop").exists())
        page.wait("runs.get('live <b>').state === 'stopped' && !runs.get('live <b>').alive")
        self.assertIsNone(other.poll())
        page.value("document.querySelector('#runs [data-key=\"stop other\"]').click()")
        self.assertEqual(self.finish(other).code, 0)
        # The page shows each step once.
        page.wait(f"runs.get('live <b>').steps.length === {steps}")
        self.assertEqual(page.value("document.getElementById('message').textContent"), "")
        frozen = page.value("document.querySelector('#runs a').getAttribute('href')")
        frozen = self.browser.open(urllib.parse.urljoin(url, frozen))
        frozen.wait("document.querySelectorAll('#charts path').length > 3")
        self.assertEqual(frozen.value("origin"), "null")  # its scripts cannot ask the monitor

        # The resumed run has the same bits as a run without a stop.
        self.succeed(job.train(ranks, "--resume", "--run-name", "live <b>", "--steps", str(steps + 10)))
        page.wait(f"runs.get('live <b>').steps.length === {steps + 10}")
        whole = self.train(ranks, "whole", *options, "--steps", str(steps + 10))
        self.assertEqual(job.step_lines(run), job.step_lines(whole))
        self.assertEqual((run / "model.safetensors").read_bytes(), (whole / "model.safetensors").read_bytes())
        monitor.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(monitor), (0, "", ""))

    def test_stop_button_ends_within_two_steps(self):
        monitor = self.start([sys.executable, str(ROOT / "tools" / "monitor"), "--port", "0"])
        page = self.browser.open(monitor.stdout.readline().strip())
        # These steps take longer than a click.
        training = self.start(job.train(job.rank_counts(1, 4)[-1], "--run-name", "slow", "--epochs", "1000", "--width", "32",
                                        "--depth", "4", "--batch-size", "200", "--threads", "1", "--precision", "fp32"))
        page.wait("runs.get('slow')?.steps.length && document.querySelector('#runs button.stop')")
        seen = len(job.step_lines(self.runs / "slow"))
        page.value("document.querySelector('#runs button.stop').click()")
        result = self.finish(training)
        self.assertEqual(result.code, 0, result.err)
        self.assertLessEqual(len(job.step_lines(self.runs / "slow")), seen + 2)


if not chromium.find():
    print("skipped: there is no chromium, chromium-browser or google-chrome")
    sys.exit(77)
job.main()
