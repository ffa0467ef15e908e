# Tests the page of a run in a real browser, from its file and from the monitor. SHOTS=DIR keeps pictures of all widths
# and colours.
import base64
import fcntl
import json
import os
import pathlib
import random
import runpy
import signal
import sys
import time
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
CURVE = ("[...document.querySelectorAll('#charts section')].find(s => s.textContent"
         ".startsWith('Loss'))?.querySelector('path')")

# The number of curves in the same chart, without those of steps.
CURVES = CURVE + ".parentNode.querySelectorAll('path:not(.thin)').length"


# Returns the texts whose contrast with their background is below 4.5 to 1, and the controls without a name.
DEFECTS = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const colours = new Map();
  const parse = text => {
    if (!colours.has(text)) {
      canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
      colours.set(text, [...canvas.getImageData(0, 0, 1, 1).data]);
    }
    return colours.get(text);
  };
  const over = (a, b) => [0, 1, 2].map(i => (a[i] * a[3] + b[i] * (255 - a[3])) / 255);
  const background = e => {
    const layers = [];
    for (; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const light = c => c.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((a, v, i) => a + v * [.2126, .7152, .0722][i], 0);
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const text = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
    if (!text || !e.checkVisibility({visibilityProperty: true}) || e.disabled) continue;
    if (/SCRIPT|STYLE|NOSCRIPT/.test(e.tagName)) continue;
    const style = getComputedStyle(e), below = background(e);
    const front = over(parse(e instanceof SVGElement ? style.fill : style.color), below);
    const [a, b] = [light(front), light(below)].sort((x, y) => y - x);
    const contrast = (a + .05) / (b + .05);
    if (contrast < 4.5) found.push(`${e.tagName} ${text.slice(0, 30)}: ${contrast.toFixed(2)}`);
  }
  for (const e of document.querySelectorAll('button, input, select, textarea, a, svg.chart, [tabindex]'))
    if (e.checkVisibility() && !e.textContent.trim() && !e.getAttribute('aria-label') && !e.labels?.length)
      found.push('no name: ' + e.outerHTML.slice(0, 80));
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  return [...found, ...ids.filter((id, i) => ids.indexOf(id) !== i).map(id => 'twice: ' + id)];
})()"""
LOSS = "charts[0]"
CHARTS = "charts.filter(c => !c.section.hidden).map(c => c.title)"
TILES = ("Object.fromEntries([...document.querySelectorAll('.tile')].map(t =>"
         " [t.lastChild, t.firstChild].map(e => e.textContent.replace(/\\s/g, ' '))))")
# The texts at the ticks and titles of the axes of the chart of the loss.
AXIS_TEXTS = "[...charts[0].svg.querySelectorAll(':scope > text')].map(t => t.textContent)"


ACCURACY = [{"name": "accuracy", "unit": "%", "higher_is_better": True}]


def training(name, epochs, steps, seed=0, best=0.9, config={}, **members):
    """Returns a run as in a report, with `steps` steps per epoch."""
    chance, metrics = random.Random(f"{name} {seed}"), []
    for e in range(1, epochs + 1):
        for i in range(1, steps + 1):
            x = e - 1 + i / steps
            metrics.append({"step": steps * (e - 1) + i, "epoch": e,
                            "loss": 2.3 / (1 + x) + chance.gauss(0, 0.08) ** 2 + 0.05,
                            "accuracy": best * x / (1 + x), "lr": 0.1 * (1 - x / epochs)})
        metrics.append({"epoch": e, "train_loss": 2.3 / (1 + e), "train_accuracy": best * e / (1 + e),
                        "test_loss": 2.6 / (1 + e) + chance.random() / 20,
                        "test_accuracy": best * e / (1.2 + e) + chance.random() / 50,
                        "images_per_s": 900 + 50 * chance.random(),
                        "seconds": 50.0})
    return {"name": name, "state": "done", "epochs": epochs, "steps_per_epoch": steps, "tested": "test",
            "begun": 1.76e9,
            "written": 1.76e9 + 60 * epochs, "build": "0.1.0 (1a2b3c4d5e6f), more", "command": "train_cifar --lr 0.1",
            "metrics": metrics, "config": {"metrics": ACCURACY} | config} | members


def many(runs, epochs, steps, diverged=()):
    """Returns runs with differing settings. The losses of the diverged ones are large."""
    found = []
    for i in range(runs):
        options = {"lr": [0.001, 0.01, 0.1][i % 3], "width": 16 * (1 + i // 3 % 3), "optimizer": ["sgd", "adam"][i % 2],
                   "seed": i}
        run = training(str(i + 1), epochs, steps, best=0.5 + 0.4 * ((7 * i) % runs) / runs, config={"options": options})
        if i in diverged:
            for line in run["metrics"]:
                for key in ("loss", "train_loss", "test_loss"):
                    if key in line:
                        line[key] *= 600
        found.append(run)
    return found


def own_loop(name, steps, epochs=0, **members):
    """Returns a run of a user's own loop as in a report, after `steps` steps. Its main metric is no loss."""
    rmse = {"name": "rmse", "label": "rmse", "unit": "\u00b0", "higher_is_better": False}
    reward = {"name": "reward", "label": "reward", "unit": "", "higher_is_better": True}
    lines = []
    for i in range(1, steps + 1):
        if not epochs:
            lines.append({"step": i, "reward": i / 2})
            if i % 5 == 0:
                lines.append({"step": i, "test_reward": 10 - i / 5})
            continue
        epoch, per_epoch = 1 + (i - 1) * epochs // steps, steps // epochs
        lines.append({"step": i, "epoch": epoch, "rmse": 9 / i, "loss": 4 / i})
        if i % per_epoch == 0:
            lines.append({"epoch": epoch, "train_rmse": 9 / epoch, "train_loss": 4 / epoch, "test_rmse": 8 / epoch,
                          "seconds": 1.5,
                          "samples_per_s": 1000.0, "largest_gradient": 0.5})
    planned = {"epochs": epochs, "steps_per_epoch": steps // epochs} if epochs else {}
    metrics = [rmse, {"name": "loss", "label": "loss", "unit": "", "higher_is_better": False}] if epochs else [reward]
    return {"name": name, "state": "done", "steps": steps, "begun": 1.76e9, "written": 1.76e9 + 20,
            "command": "own_loop",
            "config": {"metrics": metrics}, "metrics": lines} | planned | members


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

    def open_runs(self, runs, width=1280, ready=CURVE, **members):
        """Opens the page of these runs and waits until it is ready."""
        page = self.browser.open(self.page_of({"runs": runs} | members), width)
        page.wait(ready)
        return page

    def pages(self, url, ready):
        """Opens an address in all widths and colours."""
        for width in (1280, 400):
            for dark in (False, True):
                page = self.browser.open(url, width, dark)
                page.wait(ready)
                yield page

    def assert_fits(self, page, prefix=""):
        if "SHOTS" in os.environ:
            name = f"{self._testMethodName}-{prefix}{page.width}{'-dark' if page.dark else ''}.png"
            pathlib.Path(os.environ["SHOTS"], name).write_bytes(page.picture())
        self.assertEqual(page.value(DEFECTS), [])
        self.assertLessEqual(page.value("document.documentElement.scrollWidth"), page.width)


class Frozen(BrowserTest):
    def test_training(self):
        run = self.train(1, "run", *job.TINY, "--epochs", "3")
        self.assertLess((run / "report.html").stat().st_size, 300_000)
        epochs = job.epoch_lines(run)
        backgrounds = set()
        for page in self.pages((run / "report.html").as_uri(), "document.querySelectorAll('#charts path').length >= 9"):
            self.assertEqual(page.value("document.querySelector('h1').textContent.trim()"), "run done")
            cells = page.value("[...document.querySelectorAll('.confusion tbody tr')]"
                               ".map(r => [...r.querySelectorAll('td')].map(d => d.textContent))")
            self.assertEqual([row[10] for row in cells], 10 * ["20"])
            right = sum(int(cells[i][i] or 0) for i in range(10))
            self.assertAlmostEqual(right / 200, epochs[-1]["test_accuracy"])
            page.wait("[...document.images].filter(image => image.naturalWidth === 32).length === 24")
            self.assertIn("rank", page.value("document.getElementById('parts').textContent"))
            self.assert_fits(page)
            backgrounds.add((page.dark, page.value("getComputedStyle(document.body).backgroundColor")))
        self.assertEqual(len({colour for _, colour in backgrounds}), 2)

    def test_long_training(self):
        # Use as much data as a report of 50 epochs has: curves of 2000 points, and 24 images.
        chance = random.Random(1)
        mistakes = [{"name": f"image {i}",
                     "caption": f"{job.CLASSES[i % 10]}, predicted {job.CLASSES[(i + 1) % 10]}, 99.0 %",
                     "pictures": [base64.b64encode(job.png(32, 32, chance.randbytes(3072))).decode()]}
                    for i in range(24)]
        samples = [{"title": "mistakes with the highest scores", "legend": [], "samples": mistakes}]
        counts = [[850 if i == j else 10 + i + j for j in range(10)] for i in range(10)]
        confusion = {"classes": job.CLASSES, "counts": counts}
        ranks = [{"rank": i, "host": "host", "images": 12500, "steps": 200, "seconds":
                  {"data": 1.5, "compute": 40.0 + i, "sum": 5.0 - i, "update": 2.0}} for i in range(4)]
        tensors = [[f"block{b}.{i}.{name}", [64]] for b in (1, 2, 3) for i in range(4)
                   for name in ("conv.weight", "conv.bias", "bn.weight", "bn.bias")]
        network = {"parameters": 677610, "parameter_bytes": 2710440, "planned_bytes": 30 << 20,
                   "unshared_bytes": 90 << 20, "tensors": tensors}
        url = self.page_of({"runs": [training(
            "long", 50, 40, summary="a training of 50 epochs", confusion=confusion, samples=samples, ranks=ranks,
            network=network, config={"options": {f"option-{i}": i for i in range(40)}})]})
        size = (self.folder / "page.html").stat().st_size
        self.assertLess(size, 1_000_000)
        for page in self.pages(url, "document.images.length === 24"):
            self.assertEqual(page.wait(f"{CURVE}?.getAttribute('d').split('L').length"), 400)  # means of 5 steps
            self.assert_fits(page)
            loaded = page.value("performance.getEntriesByType('navigation')[0].loadEventEnd")
            print(f"a report of 50 epochs, {size} bytes, {page.width} px: loaded after {loaded:.0f} ms", flush=True)

    def test_printed(self):
        page = self.open_runs([training("run", 5, 1)])
        # Paper has another width than the window, and scripts do not run again for printing.
        charts = page.value(
            "(() => { dispatchEvent(new Event('beforeprint')); document.body.style.width = '700px';"
            "const right = e => e.getBoundingClientRect().right;"
            "return charts.filter(c => !c.section.hidden)"
            ".map(c => [c.svg.viewBox.baseVal.width, c.svg.clientWidth, right(c.svg),"
            "    ...[...c.svg.children].map(right)]); })()")
        self.assertEqual(len(charts), 5)
        for drawn, width, edge, *parts in charts:
            self.assertEqual(drawn, 350)
            self.assertLess(width, 350)
            self.assertLessEqual(max(parts), edge + 1)
        # After printing, the page is as before.
        self.assertEqual(page.value(
            "(() => { document.body.style.width = ''; dispatchEvent(new Event('afterprint'));"
            "return charts.filter(c => !c.section.hidden && "
            "c.svg.viewBox.baseVal.width !== c.svg.clientWidth).length; })()"), 0)
        self.assertGreater(len(page.call("Page.printToPDF")["data"]), 10_000)

    def test_by_keyboard(self):
        run = self.train(1, "run", *job.TINY, "--epochs", "3")
        page = self.browser.open((run / "report.html").as_uri())
        page.wait(CURVE)
        page.value("document.querySelector('svg').focus()")
        page.press("End")
        text = page.wait("document.querySelector('#charts output').textContent")
        self.assertIn("epoch 3", text)
        self.assertIn(f"test {job.epoch_lines(run)[-1]['test_loss']:.4g}".rstrip("0"), text)
        page.press("ArrowLeft")
        self.assertIn("epoch 2", page.value("document.querySelector('#charts output').textContent"))

    def test_log_clip_and_zoom(self):
        run = training("run", 6, 40)
        run["metrics"][100]["loss"] = 1500.0  # a spike
        page = self.open_runs([run])
        numbers = f"({AXIS_TEXTS}).slice(0, -2).map(Number).filter(x => x === x)"
        texts = page.value(AXIS_TEXTS)
        self.assertEqual(texts[-2:], ["epoch", "loss"])
        self.assertLess(max(page.value(numbers)), 10)  # the spike is clipped
        self.assertIn("the highest value is 1500", page.value(LOSS + ".legend.textContent"))
        page.click("[name=clip]")
        self.assertGreaterEqual(max(page.value(numbers)), 1500)
        page.click("[name=log]")
        self.assertTrue({"1", "10", "100", "1000"} <= set(page.value(AXIS_TEXTS)))
        # The axis may have steps or times: 6 epochs of 40 steps and of 50 seconds.
        for axis, title, end in (("step", "step", 240), ("time", "training time (min)", 300), ("epoch", "epoch", 6)):
            page.fill("axis", axis)
            self.assertEqual(page.value(AXIS_TEXTS)[-2], title)
            self.assertEqual(page.value(LOSS + ".map.x1"), end)
        # Drag over the third of the chart in the middle. All charts have the same horizontal axis.
        page.value("scrollTo(0, 0)")
        box = page.value("(r => [r.left, r.top, r.width])(charts[0].svg.getBoundingClientRect())")
        left, right = box[0] + 66, box[0] + box[2] - 8
        page.drag(left + (right - left) / 3, box[1] + 50, left + 2 * (right - left) / 3)
        self.assertEqual([round(x, 1)
                          for x in page.value("charts.filter(c => c.map).map(c => [c.map.x0, c.map.x1]).flat()")],
                         5 * [2, 4])
        self.assertTrue(page.value("!document.getElementById('unzoom').disabled"))
        for clicks in (1, 2):
            for kind in ("mousePressed", "mouseReleased"):
                page.mouse(kind, left + 50, box[1] + 50, clickCount=clicks)
        self.assertEqual(page.value(LOSS + ".map.x1"), 6)

    def test_hover_moves_nothing(self):
        page = self.open_runs(many(20, 5, 5))
        places = ("JSON.stringify([...document"
                  ".querySelectorAll('section, .tile, .chart')].map(e => e.getBoundingClientRect()))")
        page.value("charts[0].svg.scrollIntoView({block: 'center'})")
        before = page.value(places)
        x, y = page.value("(r => [r.left + 200, r.top + 80])(charts[0].svg.getBoundingClientRect())")
        page.mouse("mouseMoved", x, y)
        self.assertIn("epoch", page.wait(LOSS + ".values.textContent"))
        self.assertEqual(page.value(places), before)

    def test_smoothing(self):
        page = self.open_runs([training("run", 3, 300)])
        page.value("document.getElementById('smoothing').focus()")
        page.press("End")
        self.assertEqual(page.value("view.smoothing"), 0.99)
        rough = ("(name => { const ys = charts[0].lines.find(l => l.points.length > 800 && "
                 "l.name === name).points.map(p => p[1]);"
                 "return ys.slice(1).reduce((a, y, i) => a + Math.abs(y - ys[i]), 0); })")
        self.assertLess(page.value(rough + "('steps smoothed')"), page.value(rough + "(null)") / 3)
        # The average of equal values is that value, from the first one on.
        self.assertEqual(page.value("smoothed([[1, 2], [2, null], [3, 2]], .9).map(p => p[1] && +p[1].toFixed(9))"),
                         [2, None, 2])

    def test_filter_and_colours(self):
        page = self.open_runs(many(9, 3, 4))
        rows = "[...document.querySelectorAll('#runs tbody tr')].map(r => r.querySelector('button').textContent)"
        colours = ("Object.fromEntries([...document.querySelectorAll('#runs tbody tr')].filter(r => r"
                   ".querySelector('.swatch'))"
                   ".map(r => [r.querySelector('button').textContent, r.querySelector('.swatch')"
                   ".getAttribute('style')]))")
        first = page.value(colours)
        self.assertEqual(len(set(first.values())), 9)

        def filter_by(text):
            page.fill("filter", text, "input")
            return page.value(rows)

        for text, names in (("adam", "2468"), ("ADAM 0.001", "4"), ("none of them", ""), ("", "123456789")):
            self.assertEqual("".join(filter_by(text)), names, text)
        # "none" and "all" concern the rows that the filter shows. Colours stay.
        filter_by("adam")
        self.assertEqual(page.value("document.getElementById('filtered').textContent"), "4 of 9")
        page.click("#show-none")
        self.assertEqual(page.value("shownRuns().map(r => r.name).join('')"), "13579")
        filter_by("")
        self.assertEqual(page.value(colours), {name: colour for name, colour in first.items() if name not in "2468"})
        page.click("#show-none")
        page.click('[data-key="show 6"]')
        self.assertEqual(page.value(colours), {"6": first["6"]})
        page.click("#show-all")
        self.assertEqual(page.value(colours), first)

    def test_link_to_a_trial(self):
        trials = [training(str(i), 2, 2) for i in (1, 2)]
        (self.folder / "trials" / "2").mkdir(parents=True)
        url = self.page_of({"runs": [training("2", 2, 2)]})
        (self.folder / "page.html").rename(self.folder / "trials" / "2" / "report.html")
        page = self.open_runs(trials, ready="document.querySelectorAll('#runs a').length === 2",
                              sweep={"name": "s", "state": "done", "best": "1"})
        page.value("document.querySelectorAll('#runs a')[1].click()")
        page.wait("location.href.endsWith('trials/2/report.html') && "
                  "document.querySelector('h1')?.textContent.trim() === '2 done'")
        self.assertNotEqual(page.value("location.href"), url)

    def test_pictures_of_many_runs(self):
        for number, diverged in ((9, (4,)), (20, ()), (200, (7,))) if "SHOTS" in os.environ else ((9, (4,)),):
            url = self.page_of({"sweep": {"name": f"sweep of {number}", "state": "done", "best": "3",
                                          "summary": "trials",
                                          "build": "0.1.0 (1a2b3c4d5e6f), more",
                                          "command": "train_cifar sweep --grid " + 40 * "lr=0.1,1 "},
                                "runs": many(number, 8, 20, diverged)})
            for page in self.pages(url, CURVE):
                if diverged:
                    self.assertLess(page.value(LOSS + ".map.Y(3)"), page.value(LOSS + ".map.Y(0)") - 50)  # not flat
                self.assert_fits(page, f"{number}-")
                page.call("Page.close")

    def test_all_by_keyboard(self):
        page = self.open_runs(many(3, 2, 4), sweep={"name": "s", "state": "done"})
        focus = ("(e => e.getAttribute('data-key') || e.id || e.name || "
                 "e.getAttribute('aria-label')?.split('.')[0] || e.textContent)"
                 "(document.activeElement)")
        seen = []
        for _ in range(60):
            page.press("Tab")
            seen.append(page.value(focus))
        for name in ("filter", "show-all", "show-none", "sort lr", "show 2", "choose 3", "report 1", "axis", "steps",
                     "smoothing", "log", "clip", "Loss", "Accuracy", "Learning rate"):
            self.assertIn(name, seen)

        def focus_on(name):
            page.value("document.activeElement.blur()")
            for _ in range(80):
                page.press("Tab")
                if page.value(focus) == name:
                    return
            self.fail(name)

        for name, key, expression, expected in (
                ("Loss", "End", LOSS + ".values.textContent.includes('epoch 2')", True),
                ("Loss", "+", "view.zoom", [1, 2]), ("Loss", "0", "view.zoom", None),
                ("clip", " ", LOSS + ".clip", False),
                ("show 2", " ", "shownRuns().map(r => r.name)", ["1", "3"]), ("choose 3", "Enter", "chosen", "3")):
            if page.value(focus) != name:
                focus_on(name)
            page.press(key)
            self.assertEqual(page.value(expression), expected, (name, key))
            if name == "show 2":
                self.assertEqual(page.value(focus), name)
        focus_on("axis")
        page.press("ArrowDown")
        page.wait("view.axis === 'step'")

    def test_hidden_classes_count_in_sums(self):
        confusion = {"classes": ["a", "b"], "counts": [[3, 1], [0, 2]], "images": [8, 4], "seen": [5, 3], "right": 50,
                     "total": 100, "left_out": 4998}
        page = self.open_runs([{"name": "many", "confusion": confusion}], ready="document.querySelector('.confusion')")
        text = page.value("document.getElementById('parts').textContent")
        self.assertIn("50 of 100 correct", text)
        self.assertRegex(text, "omits the 4.?998 others")
        self.assertEqual(page.value("[...document.querySelectorAll('.confusion tbody .sum')].map(d => d.textContent)"),
                         ["8", "4"])
        self.assertEqual(page.value("[...document.querySelectorAll('.confusion tbody tr')].map(r => [...r.children]"
                                    ".slice(-2).map(d => d.textContent))"), [["37.5%", "62.5%"], ["50.0%", "50.0%"]])

    def test_names_are_text(self):
        evil = "</script><img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
        confusion = {"classes": [evil, "b"], "counts": [[1, 1], [0, 1]]}
        samples = [{"title": evil, "legend": [[evil, evil, 1, 1]],
                    "samples": [{"name": evil, "caption": evil,
                                 "pictures": [base64.b64encode(job.png(1, 1, b"abc")).decode()]}]}]
        ranks = [{"rank": 0, "host": evil, "images": 1, "steps": 1, "seconds": {evil: 1, "compute": 1}}]
        page = self.open_runs([
            {"name": evil, "state": evil, "summary": evil, "config": {evil: evil, "options": {evil: 1}},
             "confusion": confusion, "samples": samples, "ranks": ranks, "metrics": [{evil: 1}],
             "network": {"parameters": 1, "tensors": [[evil, [1]]]}}], ready="document.images.length")
        self.assertEqual(page.value("document.querySelectorAll('img:not(figure img)').length"), 0)
        self.assertIsNone(page.value("window.hacked"))
        self.assertIn(evil, page.value("document.querySelector('h1').textContent"))
        # The same holds in the table of many runs and its filter.
        page = self.open_runs([
            training(evil + str(i), 2, 2, state=evil, note=evil, tested=evil, build=evil, command=evil,
                     config={"options": {evil: evil + str(i), "__proto__": i, "constructor": {evil: i}}})
            for i in range(3)],
            ready="document.querySelectorAll('#runs tbody tr').length === 3")
        for text in (evil, "constructor"):
            page.fill("filter", text, "input")
        page.value("document.querySelectorAll('#runs button').forEach(b => b.click())")
        self.assertEqual(page.value("document.querySelectorAll('img').length"), 0)
        self.assertIsNone(page.value("window.hacked"))
        self.assert_fits(page)

    def test_empty_and_non_finite_metrics(self):
        self.browser.open(self.page_of(None)).wait("document.querySelector('h1').textContent.includes('no data')")
        page = self.open_runs([{"name": "empty"}], ready="document.body.textContent.includes('no data yet')")
        page.value("document.querySelector('svg').focus()")
        page.press("End")
        steps = [{"step": i, "epoch": 1, "loss": 1.0 if i < 3 else None, "accuracy": 0.1, "lr": 0.1}
                 for i in range(1, 5)]
        page = self.browser.open(self.page_of({"runs": [{"name": "bad", "steps_per_epoch": 4, "metrics": [
            *steps,
            {"epoch": 1, "train_loss": None, "train_accuracy": 0.1, "test_loss": None, "test_accuracy": 0.1}]}]}))
        self.assertIn("not finite", page.value("document.getElementById('tiles').textContent"))
        self.assertNotIn("NaN", page.value("document.body.innerHTML.replace(/<script[^]*?<\\/script>/g, '')"))
        # These values are so large and close that no round number is between them. Some steps are not numbers.
        for losses, at in (((1e17, 1e17 + 16), (1, 2)), ((1, 2), ("x", None))):
            metrics = [{"step": i, "epoch": 1, "loss": loss} for i, loss in zip(at, losses)]
            self.open_runs([{"name": "odd", "metrics": metrics}],
                           ready="document.querySelectorAll('#charts section').length")

    def test_sweep_page(self):
        # Trial 2 fails: its first loss is not finite. A rule stops trial 3.
        self.succeed([str(job.BUILD / "train_cifar"), "sweep", "--run-name", "sweep", *job.TINY, "--epochs", "3",
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
            self.assertEqual(page.value(CURVES), 4)
            page.click('[data-key="sort validation loss"]')
            worse = trials[0][-1]["validation_loss"] > trials[2][-1]["validation_loss"]
            self.assertEqual([row["trial"][0] for row in page.value(TABLE)],
                             ["3", "1", "2"] if worse else ["1", "3", "2"])
            page.click('[data-key="sort state"]')
            self.assertEqual([row["state"] for row in page.value(TABLE)], ["failed", "finished", "stopped"])
            # The page shows the best trial's test results, and then the validation results of the selected trial.
            rows = [line.split(",") for line in (run / "confusion.csv").read_text().splitlines()[1:]]
            right = sum(int(row[1 + i]) for i, row in enumerate(rows))
            headings = "[...document.querySelectorAll('#parts h2')].map(h => h.textContent)"
            self.assertEqual(page.value(headings)[0], f"Best: trial 1, on the test set: {right} of 200 correct")
            page.click('[data-key="choose 3"]')
            self.assertIn("trial 3, on the validation set", " ".join(page.value(headings)))
            self.assertIn("below 12 %", page.value("document.getElementById('chosen').textContent"))
            self.assert_fits(page)

    def test_columns(self):
        # The results come first, and then the settings that differ. So they are in sight, however many settings a run has.
        runs = many(18, 3, 4)
        for i, run in enumerate(runs):
            run["config"]["options"] |= {"runs": "runs",
                                         "epochs": 3} | {f"setting-{k}": f"value {i} {k}" for k in range(20)}
        page = self.open_runs(runs)
        shown = "[...document.querySelectorAll('#runs th')].filter(h => h.checkVisibility()).map(h => h.textContent)"
        results = ["run", "epoch", "test loss", "test accuracy", "best", "time"]
        self.assertEqual(page.value(shown)[:10], [*results, "lr", "width", "optimizer", "seed"])
        self.assertEqual(len(page.value(shown)), 30)
        inside = ("(box => [...document.querySelectorAll('#runs tr')].every(row => (cell => cell.right <= box.right &&"
                  " cell.bottom <= box.bottom)(row.children[5].getBoundingClientRect())))"
                  "(document.querySelector('#runs .scroll').getBoundingClientRect())")
        self.assertTrue(page.value(inside))
        self.assertRegex(page.value(TABLE)[0]["time"], r"^180 s$|^3\.0 min$")
        self.assert_fits(page)
        # A narrow screen has the best result alone.
        page = self.open_runs(runs, 400)
        self.assertEqual(page.value(shown), ["run", "best"])
        self.assertTrue(page.value("(s => s.scrollWidth <= s.clientWidth)(document.querySelector('#runs .scroll'))"))
        self.assert_fits(page)

    def test_ranking(self):
        # All results of a sweep are those of the metric that ranks its trials.
        rank_by = {"name": "validation_angle_rmse", "label": "validation rmse", "unit": "", "higher_is_better": False}
        metrics = [*ACCURACY, {"name": "angle_rmse", "unit": "\u00b0"}]
        runs = [{"name": str(i), "state": "finished", "tested": "validation",
                 "config": {"metrics": metrics, "options": {"lr": i}}, "metrics": [
                     {"epoch": e, "train_loss": 1, "validation_loss": 1, "validation_accuracy": i / 10,
                      "validation_angle_rmse": 10 * i - e} for e in (1, 2)]} for i in (1, 2, 3)]
        page = self.open_runs(runs, sweep={"name": "s", "state": "done", "best": "1", "rank_by": rank_by})
        rows = page.value(TABLE)
        self.assertEqual([row["best"] for row in rows], ["8", "18", "28"])
        self.assertEqual(list(rows[0])[-5:], ["epoch", "validation loss", "validation angle rmse", "best", "lr"])
        self.assertEqual(page.value("document.querySelector('#runs th[title]').title"), "best validation angle rmse")
        self.assertIn("best validation angle rmse", page.value("document.getElementById('tiles').textContent"))
        self.assertEqual(page.value(CURVES), 6)
        page.click("#runs tbody input")
        self.assertEqual(page.value(CURVES), 4)
        # The best trial is at the top by a click. A second click turns the order.
        for column, order in (("best", "123"), ("best", "321"), ("trial", "123"), ("lr", "321")):
            page.click(f'[data-key="sort {column}"]')
            self.assertEqual("".join(row["trial"][0] for row in page.value(TABLE)), order, column)

    def test_each_run_has_its_metrics(self):
        # Runs of two programs, and one whose files say nothing of its metrics: no value gets the unit of another run.
        def run(name, values, metrics, **members):
            return {"name": name, "state": "done", "begun": 1e9, "written": 1e9 + 30, "config": {"metrics": metrics},
                    "metrics": [{"epoch": 1, "train_loss": 1, "test_loss": 4} | values]} | members
        psnr = {"name": "psnr", "unit": "dB", "higher_is_better": True}
        runs = [run("a", {"test_accuracy": 0.9}, ACCURACY), run("b", {"test_psnr": 3.457}, [psnr], seconds_before=3570),
                run("c", {"test_accuracy": 7.5, "test_loss": 2}, None), run("d", {"test_psnr": 30}, [psnr])]
        page = self.open_runs(runs, ready="runs.size === 4")
        self.assert_fits(page)
        rows = page.value(TABLE)
        results = [{key: value.replace("\u00a0", " ") for key, value in row.items() if value != "\u2013"}
                   for row in rows]
        shown = {"epoch": "1", "test loss": "4", "time": "30.0 s"}
        self.assertEqual(results, [
            shown | {"run": "a", "test accuracy": "90.0 %", "best accuracy": "90.0 %"},
            shown | {"run": "b", "test psnr": "3.457 dB", "best psnr": "3.457 dB", "time": "60.0 min"},
            # Nothing is known of c but its loss. It logs an accuracy, as a does, but not as a fraction.
            shown | {"run": "c", "test loss": "2", "test accuracy": "7.5", "best loss": "2"},
            shown | {"run": "d", "test psnr": "30 dB", "best psnr": "30 dB"}])

    def test_own_loop(self):
        fields = {"network": "3 layers of 64 values each, and no batch norm", "points": 12345, "noise": 0.25}
        run = own_loop("angles", 20, 4, fields=fields)
        run["metrics"].append({"end": "result", "accuracy": 0.97, "test_rmse": 1.5})
        for page in self.pages(self.page_of({"runs": [run]}), "document.querySelectorAll('#charts path').length"):
            self.assertEqual(page.value(CHARTS),
                             ["Rmse", "Loss", "Samples per second, training", "Seconds per epoch, training"])
            self.assertEqual(page.value("charts[0].lines.map(l => [l.name, l.points.length])"),
                             [["steps", 20], ["training", 4], ["test", 4]])
            self.assertEqual(page.value("charts[0].unit"), "\u00b0")
            self.assertEqual(page.value(TILES), {
                "epochs of 4 done": "4", "step of 20": "20", "test rmse": "2 \u00b0", "training loss": "1",
                "best test rmse": "2 \u00b0",
                "result: accuracy": "0.97", "result: test rmse": "1.5 \u00b0", "steps/s": "1", "samples/s": "1,000",
                "elapsed": "20.0 s",
                "training time": "6.00 s", "network": fields["network"], "points": "12,345", "noise": "0.25"})
            # No text reaches out of its tile.
            self.assertEqual(page.value("[...document.querySelectorAll('.tile b')].filter(b => b.scrollWidth > "
                                        "b.clientWidth).length"), 0)
            self.assert_fits(page)

    def test_own_loop_without_epochs(self):
        for state in ("stopped", "failed"):
            run = own_loop("cart pole", 40, state=state,
                           note="expected a finite reward, got nan" if state == "failed" else "")
            run["steps"] = 100
            for page in self.pages(self.page_of({"runs": [run]}), "document.querySelectorAll('#charts path').length"):
                self.assertEqual(page.value(CHARTS), ["Reward"])
                self.assertEqual(page.value("[charts[0].map.x1, document.getElementById('axis')"
                                            ".value, axisTitle()[0]]"), [40, "step", "step"])
                self.assertEqual(page.value("charts[0].lines.map(l => l.points.length)"), [40, 8])
                self.assertEqual(page.value(TILES),
                                 {"step of 100": "40", "reward, last 20 steps": "15.25", "test reward": "2",
                                                     "best test reward": "9", "steps/s": "2", "elapsed": "20.0 s"})
                self.assertIn(run["note"], page.value("document.getElementById('chosen').textContent"))
                self.assert_fits(page, state)
        page.fill("axis", "time")
        self.assertEqual(page.value("charts[0].map.x1"), 20)

    def test_trainings_and_own_loops(self):
        runs = [training("training", 2, 5), own_loop("angles", 20, 4), own_loop("cart pole", 40),
                own_loop("no test", 20, metrics=[{"step": i, "reward": 30 + i} for i in range(1, 21)])]
        page = self.open_runs(runs)
        rows = page.value(TABLE)
        self.assertEqual(list(rows[0]),
                         ["run", "epoch", "step", "test loss", "test accuracy", "test rmse", "test reward", "reward",
                                         "best accuracy", "best rmse", "best reward", "time"])
        values = [{key: value.replace("\u00a0", " ") for key, value in row.items() if value != "\u2013"}
                  for row in rows[1:]]
        self.assertEqual(values, [
            {"run": "angles", "epoch": "4", "test rmse": "2 \u00b0", "best rmse": "2 \u00b0", "time": "20.0 s"},
            {"run": "cart pole", "step": "40", "test reward": "2", "reward": "20", "best reward": "9",
             "time": "20.0 s"},
            {"run": "no test", "step": "20", "reward": "50", "time": "20.0 s"}])
        self.assertEqual(page.value("[axis(), charts[0].map.x1]"), ["step", 20])  # one run has no epochs
        for width in (1280, 400):
            self.assert_fits(self.open_runs(runs, width))
        # Among runs with epochs alone, nothing has a column, a chart or an axis of steps.
        page = self.open_runs(runs[:2])
        self.assertNotIn("step", page.value(TABLE)[0])
        self.assertEqual(page.value("[axis(), document.getElementById('axis').value]"), ["epoch", "epoch"])
        self.assertNotIn("Reward", page.value(CHARTS))

    def test_failed_curve_ends_in_a_cross(self):
        runs = [{"name": str(i), "state": state, "tested": "validation", "note": state * i, "metrics": [
            {"epoch": e, "train_loss": 1 / e, "validation_loss": 2 / e} for e in range(1, 6 - i)]}
                for i, state in enumerate(["finished", "failed", "queued"])]
        page = self.open_runs(runs, sweep={"name": "s", "state": "done", "best": "0"})
        self.assertEqual(page.value("document.querySelectorAll('svg .failed').length"), 1)
        self.assertEqual(page.value(TABLE)[1]["validation loss"], "0.5")

    def test_bars(self):
        groups = [{"name": "training", "bars": [["a", 2.0], ["b", 1.0]], "note": "2 times"},
                  {"name": "x", "bars": [["a", 0]]}]
        bars = {"title": "Before <b>", "unit": "s", "groups": groups}
        page = self.open_runs([{"name": "run", "bars": bars}], ready="document.querySelectorAll('.bar i').length === 3")
        widths = "[...document.querySelectorAll('.bar i')].map(i => i.getBoundingClientRect().width)"
        long, short, _ = page.value(widths)
        self.assertAlmostEqual(long / short, 2, delta=0.05)
        # A long label has several lines, so that it hides neither its value nor its bar.
        groups[0]["bars"][0][0] = "op by op, in a network with a long name"
        for width in (1280, 400):
            page = self.open_runs([{"name": "run", "bars": bars}], width,
                                  ready="document.querySelectorAll('.bar i').length === 3")
            self.assertTrue(page.value("[...document.querySelectorAll('#parts .scroll')].every(s => s.scrollWidth "
                                       "<= s.clientWidth)"))
            self.assertGreater(min(page.value(widths)[:2]), 20)
            self.assert_fits(page)


class Live(BrowserTest):
    def add_run(self, data):
        """Writes the files of a run."""
        folder = self.runs / data["name"]
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in data["metrics"]))
        (folder / "config.json").write_text(json.dumps(data.get("config", {})))
        path = urllib.parse.urlsplit(self.page_of({"runs": [data]})).path
        os.replace(path, folder / "report.html")
        return folder

    def test_first_seconds(self):
        # The page shows the progress within the first epoch.
        monitor, url = self.start_monitor()
        training = self.start(job.train(1, "--run-name", "young", "--epochs", "1000", "--width", "32", "--depth", "4",
                                        "--batch-size", "10", "--threads", "1", "--precision", "fp32"))
        pages = list(self.pages(url, "runs.get('young')?.steps.length > 2"))
        for page in pages:
            page.wait("rate(runs.get('young')) > 0")
            page.wait(CURVE)
            self.assert_fits(page)
        tiles = pages[0].value("Object.fromEntries([...document"
                               ".querySelectorAll('.tile')].map(t => [t.lastChild.textContent,"
                               "t.firstChild.textContent]))")
        if "steps/s" in tiles:  # the first epoch is not over yet
            for name in ("steps/s", "time left, about", "elapsed", "loss, last 20 steps", "accuracy, last 20 steps"):
                self.assertRegex(tiles[name], "[1-9]", name)
        origin = pages[0].value("document.getElementById('origin').textContent")
        self.assertRegex(origin, r"begun \d.*; version \d+\.\d+\.\d+ \(.+\); .*train_cifar --run-name young")
        job.kill_job(training)

    def test_own_loop(self):
        # Two loops run, with epochs and without; the end of one is shown when it comes.
        for data in (own_loop("angles", 20, 4), own_loop("cart pole", 40)):
            lines = data["metrics"][:15]
            folder = self.add_run(data | {"metrics": lines, "state": "running", "begun": time.time() - 10,
                                          "fields": {"kind": data["name"]}})
            lock = os.open(folder, os.O_RDONLY)
            self.addCleanup(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        monitor, url = self.start_monitor()
        for page in self.pages(url, "runs.size === 2 && document.querySelector('#charts path')"):
            for name, progress in (("angles", {"epochs of 4 done": "2", "step of 20": "13"}),
                                   ("cart pole", {"step of 40": "13"})):
                page.click("#show-none")
                page.click(f'[data-key="choose {name}"]')
                page.wait(f"chosen === '{name}' && runs.get(chosen).steps.length === 13 && "
                          f"document.querySelector('#charts path')")
                tiles = page.value(TILES)
                self.assertEqual(tiles | progress | {"kind": name}, tiles)
                for text in ("steps/s", "elapsed", "time left, about"):
                    self.assertRegex(tiles[text], "[1-9]", text)
                self.assertNotIn("\u2013", "".join(tiles.values()))
                self.assertEqual(page.value(CHARTS)[:1], ["Rmse" if name == "angles" else "Reward"])
                self.assert_fits(page, name)
        with (self.runs / "cart pole" / "metrics.jsonl").open("a") as file:
            file.write('{"end": "result", "mean_reward": 12.5}\n')
        page.wait("document.getElementById('tiles').textContent.includes('12.5result: mean reward')")

    def test_restart_of_the_monitor(self):
        run = self.add_run(training("run", 1, 3))
        monitor, url = self.start_monitor()
        page = self.browser.open(url)
        page.wait("runs.get('run')?.steps.length === 3")
        job.kill_job(monitor)
        page.wait("document.getElementById('message').textContent.includes('No answer from the monitor')")
        monitor, again = self.start_monitor(urllib.parse.urlsplit(url).port)
        self.assertEqual(again, url)
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "epoch": 2, "loss": 1}\n')
        page.wait("runs.get('run').steps.length === 4 && !document.getElementById('message').textContent")
        self.browser.complaints = [text for text in self.browser.complaints if "ERR_CONNECTION_REFUSED" not in text]

    def test_rows_without_a_tick(self):
        # The table has the settings and results of all runs. A run that starts later appears, and shows its results.
        for data in many(4, 3, 4):
            self.add_run(data)
        page = self.browser.open(self.start_monitor()[1])
        page.wait("runs.size === 4")
        self.assertEqual(page.value("shownRuns().length"), 1)
        rows = {row["run"]: row for row in page.value(TABLE)}
        self.assertEqual({name: row["lr"] for name, row in rows.items()},
                         {"1": "0.001", "2": "0.01", "3": "0.1", "4": "0.001"})
        for row in rows.values():
            self.assertRegex(row["test accuracy"], r"^\d+\.\d")
            self.assertRegex(row["best"], r"^\d+\.\d")
        late = many(5, 3, 4)[4]
        self.add_run(late)
        page.wait("runs.get('5')?.best")
        self.assertEqual([row["lr"] for row in page.value(TABLE) if row["run"] == "5"], ["0.01"])

    def test_notes(self):
        hostile = "</td><img src=x onerror='window.hacked=1'>\n=1+1"
        self.add_run(many(2, 1, 2)[0]).joinpath("notes.txt").write_text(hostile)
        _, url = self.start_monitor()
        page = self.browser.open(url)
        page.wait("document.querySelector('#runs td .note')?.textContent")
        self.assertIn("=1+1", page.value("document.querySelector('#runs td .note').textContent"))
        self.assertIsNone(page.value("window.hacked"))
        self.assertEqual(page.value("document.querySelectorAll('img').length"), 0)

    def test_many_runs(self):
        # Prints how long the page takes. MANY=RUNS,STEPS sets the number of runs and their steps.
        number, steps = map(int, os.environ.get("MANY", "60,400").split(","))
        for i, data in enumerate(many(number, 10, steps // 10)):
            every = max(1, steps // 2000)  # a report has at most 2000 lines of steps
            folder = self.add_run(data | {"metrics": [line for line in data["metrics"]
                                                      if line.get("step", 0) % every == 0]})
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in data["metrics"]))
        monitor, url = self.start_monitor()
        begin = time.monotonic()
        page = self.browser.open(url)
        page.wait(f"runs.size === {number} && document.querySelector('#charts path')")
        said = [f"first paint {time.monotonic() - begin:.2f} s"]
        begin = time.monotonic()
        page.click("#show-all")
        page.wait("[...runs.values()].every(run => run.epochs.length === 10)")
        said.append(f"all curves {time.monotonic() - begin:.2f} s")
        for name, action in (("update", "update()"), ("zoom", "setZoom([2, 4])"),
                             ("smoothing", "setView('smoothing', .9)"),
                             ("axis", "setView('axis', 'time')"),
                             ("hover", "charts[0].moveCursor(300, 100)")):
            took = page.value(f"(async () => {{ const t = performance.now(); {action};"
                              "await new Promise(done => requestAnimationFrame(() => setTimeout(done))); "
                              "return performance.now() - t; })()")
            said.append(f"{name} {took:.0f} ms")
        memory = page.call("Runtime.getHeapUsage")["usedSize"] / 2 ** 20
        print(f"{number} runs of {steps} steps: {', '.join(said)}, {memory:.0f} MiB", flush=True)
        self.assertEqual(page.value("shownRuns().length"), number)

    def test_sweep(self):
        monitor, url = self.start_monitor()
        sweep = self.start([str(job.BUILD / "train_cifar"), "sweep", "--run-name", "a sweep", *job.TINY, "--epochs",
                            "100000",
                            "--batch-size", "50", "--grid", "lr=1e30,0.05,0.01"])
        # In the list of runs, a sweep is one run with a page of its trials.
        page = self.browser.open(url)
        page.wait("document.querySelector('#runs a[href^=trials]')")
        page.wait("runs.get('a sweep').ended === 1 && runs.get('a sweep').best > 0")
        row = page.value(TABLE)[0]
        self.assertEqual(row["epoch"], "1 of 3 trials")
        self.assertRegex(row["best"], r"^\d+\.\d.%$")
        self.assertFalse(page.value("document.getElementById('charts').checkVisibility()"))  # a sweep has no curves
        trials = page.value("document.querySelector('#runs a[href^=trials]').getAttribute('href')")
        page = self.browser.open(urllib.parse.urljoin(url, trials))
        # The sweep writes the states of its trials once a second, so the page may get the second trial first.
        page.wait("runs.get('1')?.state === 'failed' && runs.get('2')?.state === 'running' && "
                  "runs.get('2').epochs.length")
        cells = page.value(TABLE)
        self.assertEqual([row["state"] for row in cells], ["failed", "running", "queued"])
        self.assertIn("expected finite values", cells[0]["reason"])
        self.assertEqual([row["lr"] for row in cells], ["1.00e+30", "0.05", "0.01"])
        self.assertNotIn(cells[1]["validation loss"], ("", "\u2013"))
        self.assertEqual(page.value("document.querySelector('h1').textContent.trim()"), "a sweep running")
        # A click stops a trial, and the next one starts. Then a click in the list stops the whole sweep.
        page.click('[data-key="stop 2"]')
        page.wait("runs.get('3').state === 'running' && runs.get('3').epochs.length")
        self.assertEqual(page.value("runs.get('2').state + ', ' + runs.get('2').note"), "stopped, on request")
        page = self.browser.open(url)
        page.wait("document.querySelector('#runs button.stop')")
        page.click("#runs button.stop")
        result = self.finish(sweep, 0)
        self.assertIn("stopped; continue with --resume", result.out)
        self.assertRegex(result.out, "best so far: trial [23] .*, on the test set: ")
        page.wait("runs.get('a sweep').state === 'stopped'")

    def test_more_runs_than_fit_in_one_url(self):
        names = [f"{i:03}-" + 200 * "n" for i in range(100)]
        for name in names:
            (self.runs / name).mkdir(parents=True)
            (self.runs / name / "metrics.jsonl").write_text('{"step": 1, "epoch": 1, "loss": 2}\n')
        page = self.browser.open(self.start_monitor()[1])
        page.wait("runs.size === 100")
        page.value("runs.forEach(run => run.shown = true)")
        page.wait("[...runs.values()].every(run => run.steps.length === 1)")
        for name in names:
            with (self.runs / name / "metrics.jsonl").open("a") as file:
                file.write('{"step": 2, "epoch": 1, "loss": 1}\n')
        page.wait("[...runs.values()].every(run => run.steps.length === 2)")
        self.assertEqual(page.value("document.getElementById('message').textContent"), "")

    def test_thousand_runs(self):
        for i in range(1000):
            run = self.runs / f"run {i:03}"
            run.mkdir(parents=True)
            (run / "config.json").write_text(json.dumps({"options": {"lr": i / 1000}}))
            (run / "metrics.jsonl").write_text('{"step": 1, "epoch": 1, "loss": 2}\n')
        page = self.browser.open(self.start_monitor()[1])
        page.wait("document.querySelectorAll('#runs tbody tr').length === 1000")
        page.fill("filter", "0.99", "input")
        page.click("#show-all")
        page.wait("[...runs.values()].filter(run => run.steps.length).length >= 10")
        self.assertEqual(page.value("document.querySelectorAll('#runs tbody tr').length"), 10)
        self.assertEqual(page.value("document.getElementById('message').textContent"), "")

    def test_damaged_runs(self):
        # The list shows runs with damaged reports, a config.json of null, and a name that is not UTF-8. The valid run
        # has a curve.
        steps = "".join(f'{{"step": {i}, "epoch": 1, "loss": {1 / i}}}\n' for i in range(1, 9))
        odd = ({"config": None}, {"config": {"options": None}}, {"confusion": {"classes": 1}}, {"samples": [1]},
               {"best_on_test": {"samples": 1}}, {"ranks": [1]}, {"bars": {}},
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
        page = self.browser.open(self.start_monitor()[1])
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
        monitor, url = self.start_monitor()
        page = self.browser.open(url)
        page.wait("document.body.textContent.includes('No run yet')")
        training = self.start(job.train(ranks, *options, "--run-name", "live <b>"))
        run = self.runs / "live <b>"
        before = page.wait(CURVE + "?.getAttribute('d')")
        page.wait(f"{CURVE}.getAttribute('d') !== {json.dumps(before)}")
        page.wait("document.querySelectorAll('#parts figure img').length")
        self.assertEqual(page.value("document.querySelector('.state').textContent"), "running")

        # Start a second run.
        other = self.start(job.train(1, *options, "--run-name", "other"))
        # It appears, with its curves, without a click.
        page.wait("shownRuns().length === 2 && shownRuns().every(r => r.epochs.length)")

        seen = len(job.step_lines(run))
        page.click('#runs [data-key="stop live <b>"]')
        result = self.finish(training, 0)
        steps = len(job.step_lines(run))
        self.assertIn(f"stopped after step {steps};", result.out)
        self.assertGreaterEqual(steps, seen)
        self.assertFalse((run / "stop").exists())
        page.wait("runs.get('live <b>').state === 'stopped' && !runs.get('live <b>').alive")
        self.assertIsNone(other.poll())
        page.click('#runs [data-key="stop other"]')
        self.finish(other, 0)
        # The page shows each step once.
        page.wait(f"runs.get('live <b>').steps.length === {steps}")
        self.assertEqual(page.value("document.getElementById('message').textContent"), "")
        frozen = page.value("document.querySelector('#runs a').getAttribute('href')")
        frozen = self.browser.open(urllib.parse.urljoin(url, frozen))
        frozen.wait("document.querySelectorAll('#charts path').length > 3")
        self.assertEqual(frozen.value("origin"),
                         "null")  # its scripts cannot ask the monitor, and do not know the token
        token = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["token"][0]
        self.assertNotIn(token, frozen.value("location.href + document.referrer"))

        # The resumed run has the same bits as a run without a stop.
        self.succeed(job.train(ranks, "--resume", "--run-name", "live <b>", "--steps", str(steps + 10)))
        page.wait(f"runs.get('live <b>').steps.length === {steps + 10}")
        whole = self.train(ranks, "whole", *options, "--steps", str(steps + 10))
        self.assert_same_training(run, whole)
        monitor.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(monitor), (0, "", ""))

    def test_stop_button_ends_within_two_steps(self):
        page = self.browser.open(self.start_monitor()[1])
        # These steps take longer than a click.
        training = self.start(job.train(job.rank_counts(1, 4)[-1], "--run-name", "slow", "--epochs", "1000", "--width",
                                        "32",
                                        "--depth", "4", "--batch-size", "200", "--threads", "1", "--precision", "fp32"))
        page.wait("runs.get('slow')?.steps.length && document.querySelector('#runs button.stop')")
        seen = len(job.step_lines(self.runs / "slow"))
        page.click("#runs button.stop")
        result = self.finish(training, 0)
        self.assertLessEqual(len(job.step_lines(self.runs / "slow")), seen + 2)


if not chromium.find():
    print("skipped: there is no chromium, chromium-browser or google-chrome")
    sys.exit(77)
job.main()
