# Tests the answers of the monitor and the requests that it rejects. The requests are made by hand, since a browser
# would not send them.
import http.client
import json
import os
import pathlib
import runpy
import shutil
import socket
import struct
import sys
import threading
import time
import urllib.parse

import job



class MonitorTest(job.JobTest):
    def setUp(self):
        super().setUp()
        self.monitor, url = self.start_monitor()
        self.url = urllib.parse.urlsplit(url)
        self.token = urllib.parse.parse_qs(self.url.query)["token"][0]

    def tearDown(self):
        job.kill_job(self.monitor)
        self.assertEqual(self.monitor.communicate(), ("", ""))  # no request makes it print

    def ask(self, target, method="GET", token=True, body=None, **headers):
        """Returns status and text of an answer."""
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=job.LIMIT)
        connection.request(method, target, body, {k.replace("_", "-"): v for k, v in headers.items()} |
                           ({"X-Token": self.token} if token is True else {}))
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def news(self, name, at=""):
        status, text = self.ask("/data?" + urllib.parse.urlencode({"run." + name: at}))
        self.assertEqual(status, 200, text)
        return {run["name"]: run for run in json.loads(text, parse_constant=self.fail)["runs"]}[name]

    def trials(self, name):
        status, text = self.ask(f"/trials/{urllib.parse.quote(name)}/data")
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def add_run(self, name, **config):
        run = self.runs / name
        run.mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({"options": config}))
        return run

    def rows(self):
        """Returns what the monitor tells of all runs."""
        return json.loads(self.ask("/data?since=")[1])["runs"]

    def write_page(self, run, data):
        (run / "report.html").write_text(f'<script id="data" type="application/json">{data}</script>')

    def test_pieces(self):
        run = self.train(1, "first run+", *job.TINY, "--epochs", "2")
        first = self.news(run.name)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(first["metrics"], lines)
        self.assertEqual((first["state"], first["alive"], first["whole"]), ("done", False, True))
        self.assertEqual(first["report"]["epochs"], 2)
        self.assertEqual(sum(map(sum, first["report"]["confusion"]["counts"])), 200)
        again = self.news(run.name, first["at"])
        self.assertEqual((again["metrics"], again["at"]), ([], first["at"]))
        self.assertFalse({"report", "whole"} & set(again))
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 1}\n{"step": 2')
        third = self.news(run.name, first["at"])
        self.assertEqual(third["metrics"], [{"step": 1}])
        with (run / "metrics.jsonl").open("a") as file:
            file.write('1}\nno JSON\n[3]\n')
        self.assertEqual(self.news(run.name, third["at"])["metrics"], [{"step": 21}])
        # A new file under the same name is sent from its start. A wrong position of a client does no harm.
        text = (run / "metrics.jsonl").read_text()
        (run / "new").write_text(text)
        os.replace(run / "new", run / "metrics.jsonl")
        inode = os.stat(run / "metrics.jsonl").st_ino
        for at in (third["at"], "-", "x-y-z", f"{inode}-{10 ** 30}-", f"{inode}-{5000 * '9'}-", "-²-", "--------"):
            self.assertEqual(len(self.news(run.name, at)["metrics"]), len(lines) + 2, at)

    def test_trials(self):
        sweep = self.add_run("a sweep")
        rows = [{"trial": 1, "state": "failed", "note": "no memory", "settings": {"lr": "0.1", "augment": "none"}},
                {"trial": 2, "state": "running", "note": "", "settings": {"lr": "1"}}, {"trial": 3, "state": "queued"}]
        (sweep / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (sweep / "trials" / "1").mkdir(parents=True)
        (sweep / "trials" / "1" / "metrics.jsonl").write_text('{"step": 1}\n')
        self.assertTrue(self.news("a sweep")["trials"])
        found = self.trials("a sweep")
        self.assertEqual([(run["name"], run["state"], run["note"]) for run in found["runs"]],
                         [("1", "failed", "no memory"), ("2", "ended early", ""), ("3", "queued", "")])
        self.assertEqual((found["sweep"]["name"], found["sweep"]["alive"]), ("a sweep", False))
        first = json.loads(self.ask("/trials/a%20sweep/data?run.1=")[1])["runs"][0]
        self.assertEqual(first["metrics"], [{"step": 1}])
        self.assertEqual(first["report"]["config"], {"options": {"lr": 0.1, "augment": "none"}})
        self.assertEqual(self.ask("/trials/a%20sweep/stop?run=1", "POST")[0], 409)

    def test_damaged(self):
        # A damaged run hides no other: deeply nested JSON, numbers that browsers cannot read, an unreadable folder.
        good = self.add_run("good", lr=0.1)
        for name, text in (("deep", 100_000 * "["), ("odd", '{"options": {"lr": NaN, "seed": 1e999}}')):
            run = self.add_run(name)
            (run / "config.json").write_text(text)
            (run / "metrics.jsonl").write_text(f'{text}\n{{"step": 1, "loss": -Infinity}}\n{{"step": 2, "loss": "x"}}\n')
            self.write_page(run, text)
        self.assertEqual(self.news("good")["report"], {"config": {"options": {"lr": 0.1}}})
        self.assertEqual(self.news("deep")["metrics"], [{"step": 1, "loss": None}, {"step": 2, "loss": None}])
        self.assertEqual(self.news("odd")["report"], {"config": {"options": {"lr": None, "seed": None}}})
        for name, rows, best in (("sweep-1", '{"trial": 1, "state": "failed"}', '"1"'), ("sweep-2", "[1]", "[1]"),
                                 ("sweep-3", '{"trial": 1, "state": "finished", "last_epoch": [1]}', '"1"')):
            run = self.add_run(name)  # its trials have no folders
            (run / "journal.jsonl").touch()
            (run / "results.jsonl").write_text(rows + "\n")
            self.write_page(run, f'{{"sweep": {{"best": {best}}}}}')
        text = self.succeed([*job.MONITOR, "--text"])
        for shown in ("good", "best: trial 1, -; 1 failed", "best: trial 1, -; 1 finished"):
            self.assertIn(shown, text)
        closed = self.add_run("closed")
        closed.chmod(0)
        self.folder.chmod(0o755)
        names = runpy.run_path(job.MONITOR[1])["Runs"](self.runs).names
        try:
            if os.getuid() == 0:  # root may read everything
                os.seteuid(65534)
            self.assertEqual(sorted(names()), ["deep", "good", "odd", "sweep-1", "sweep-2", "sweep-3"])
        finally:
            os.seteuid(os.getuid())
            closed.chmod(0o755)

    def test_odd_types(self):
        # All files have valid JSON of unexpected types, and a name is not UTF-8.
        odd = ("null", "1", "[1]", '"x"', "{}", '{"options": 1}', '{"options": null, "config": 1}', '{"runs": 1}',
               '{"runs": [null]}', '{"sweep": [1]}', '{"sweep": {"best": {}, "state": {}, "confusion": 1}}', "1" + 400 * "0",
               '{"runs": [{"state": [1], "epochs": {}, "steps": null, "tested": 1, "metrics": [1, {"epoch": [1]}]}]}',
               '{"trial": 1, "state": [1], "settings": [1], "note": {}, "last_epoch": {"validation_accuracy": 1' + 400 * "0" + "}}",
               '{"step": {}, "epoch": "x", "loss": [1]}')
        self.add_run("good", lr=0.1)
        for i, text in enumerate(odd):
            run = self.add_run(f"odd-{i}")
            (run / "config.json").write_text(text)
            (run / "metrics.jsonl").write_text(f'{text}\n{{"step": 2, "loss": 1e999}}\n')
            (run / "results.jsonl").write_text(text + "\n")
            self.write_page(run, text)
            if i % 2:
                (run / "journal.jsonl").touch()
        byte = os.fsencode(self.runs) + b"/bad\xff"
        shutil.copytree(os.fsencode(self.runs / "good"), byte)
        names = [f"odd-{i}" for i in range(len(odd))] + ["good", "bad\\xff"]
        for name in names:
            news = self.news(name)
            for member, kind in (("state", str), ("alive", bool), ("metrics", list), ("report", dict)):
                self.assertIsInstance(news.get(member, kind()), kind, (name, member))
            self.assertEqual(type(news["report"].get("config", {}).get("options", {})), dict, name)
            if news["trials"]:
                self.trials(name)
                self.assertEqual(self.ask(f"/trials/{name}/data?run.1=")[0], 200)
        self.assertEqual(self.news("bad\\xff")["report"], {"config": {"options": {"lr": 0.1}}})
        self.assertEqual(self.ask("/stop?run=bad%5Cxff", "POST"), (409, "bad\\xff is not running"))
        text = self.succeed([*job.MONITOR, "--text"], LINES="99", PYTHONIOENCODING="ascii")
        self.assertEqual(len(text.splitlines()), len(names) + 1)
        for name in names:
            self.assertIn(name, text)

    def test_error_of_one_run(self):
        Runs = runpy.run_path(job.MONITOR[1])["Runs"]

        class Broken(Runs):
            def summary(self, name):
                return 1 / 0 if name == "bad" else super().summary(name)

        for name in ("bad", "good"):
            self.add_run(name)
        for at in (None, ""):
            bad, good = (Broken(self.runs).told(name, at) for name in ("bad", "good"))
            self.assertEqual((bad["state"], bad["note"]), ("cannot be shown", "ZeroDivisionError: division by zero"))
            self.assertEqual((good["state"], good["name"]), ("", "good"))

    def test_slow_client(self):
        # Send one byte at a time, each long before a timeout of the socket.
        module = runpy.run_path(job.MONITOR[1])
        module["Handler"].timeout = 1
        server = module["Server"](module["Runs"](self.runs), 0, "token")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            with socket.create_connection(server.server_address, job.LIMIT) as client:
                begin = time.monotonic()
                with self.assertRaises(OSError):
                    while time.monotonic() - begin < job.LIMIT:
                        client.sendall(b"G")
                        time.sleep(0.1)
        finally:
            server.shutdown()
            server.server_close()

    def test_ports(self):
        for port in ("99999", "-1", "65536"):
            self.refuse([*job.MONITOR, "--port", port], f"monitor: --port: expected 0 to 65535, got {port}")

    def test_no_folder(self):
        (self.folder / "file").touch()
        for what in (["--text"], ["--stop", "run"], ["--port", "0"]):
            self.refuse([*job.MONITOR, "--runs", "file", *what], "monitor: file: Not a directory")

    def test_large(self):
        # A long file comes in pieces, with every n-th step, the last step, and all epochs.
        run = self.add_run("large")
        steps = 1_000_000
        with (run / "metrics.jsonl").open("w") as file:
            for i in range(steps):
                file.write(f'{{"step": {i}, "loss": 0.12345678, "lr": 0.1}}\n')
                if i % 1000 == 999:
                    file.write(f'{{"epoch": {i // 1000 + 1}, "test_loss": 0.5}}\n')
        at, got, epochs, pieces = "", [], [], 0
        while True:
            news = self.news("large", at)
            got += [line["step"] for line in news["metrics"] if "step" in line]
            epochs += [line["epoch"] for line in news["metrics"] if "step" not in line]
            at, pieces = news["at"], pieces + 1
            if not news["more"]:
                break
        self.assertGreater(pieces, 1)
        self.assertEqual(epochs, list(range(1, 1001)))
        self.assertEqual(got, sorted(set(got)))
        self.assertEqual(got[0], 0)
        self.assertGreater(got[-1], steps - 1000)
        self.assertTrue(1000 < len(got) < 20_000, len(got))

    def test_rows(self):
        # A row comes with the first answer, and again when it has changed.
        for i in range(3):
            self.add_run(f"run-{i}", lr=i)
        first = json.loads(self.ask("/data?since=")[1])
        self.assertEqual({run["name"]: run["row"]["config"]["options"] for run in first["runs"]},
                         {f"run-{i}": {"lr": i} for i in range(3)})

        def changed(since):
            answer = json.loads(self.ask("/data?since=" + urllib.parse.quote(since))[1])
            return answer["since"], sorted(run["name"] for run in answer["runs"] if "row" in run)

        since, _ = changed(first["since"])
        self.assertEqual(changed(since)[1], [])
        (self.runs / "run-1" / "config.json").write_text('{"options": {"lr": 7, "new": 1}}')
        self.assertEqual(changed(since)[1], ["run-1"])
        for odd in ("other-1", since + "x", since + 30 * "9", "-", "\u00b2"):
            self.assertEqual(len(changed(odd)[1]), 3, odd)
        # Without a report, the results are those in the lines of epochs. config.json says which metric is the main one.
        (self.runs / "run-2" / "config.json").write_text(json.dumps({"options": {}, "metrics": [
            {"name": "accuracy", "higher_is_better": True}]}))
        (self.runs / "run-2" / "metrics.jsonl").write_text(
            '{"step": 1, "epoch": 1, "test_accuracy": 0.9}\n{"epoch": 1, "test_accuracy": 0.5}\n'
            '{"epoch": 2, "test_accuracy": 0.4}\n{"end": "six_views", "test_accuracy": 0.8}\n')
        run = next(run for run in json.loads(self.ask("/data?since=")[1])["runs"] if run["name"] == "run-2")
        self.assertEqual((run["row"]["best"], run["last"]["epoch"]), (0.5, 2))
        # The metrics of an own loop may be unknown: then the lowest loss is the best.
        (self.runs / "run-1" / "metrics.jsonl").write_text(
            "".join(f'{{"epoch": {e}, "test_accuracy": {e}, "test_loss": {5 - e}}}\n' for e in (1, 2)))
        run = next(run for run in json.loads(self.ask("/data?since=")[1])["runs"] if run["name"] == "run-1")
        self.assertEqual(run["row"]["best"], 3)

    def test_own_loops(self):
        # A loop may have no loss, no epochs and no test. The best value is one of epochs or tests, never of a step.
        metrics = [{"name": "rmse", "higher_is_better": False}]
        for name, lines, expected in (
                ("steps", ['{"step": 1, "rmse": 3}', '{"step": 2, "rmse": 5}'], ({"step": 2, "rmse": 5}, None)),
                ("tests", ['{"step": 1, "rmse": 3}', '{"step": 1, "test_rmse": 4}', '{"step": 2, "rmse": 2, "test_rmse": 6}'],
                 ({"step": 2, "rmse": 2, "test_rmse": 6}, 4)),
                ("epochs", ['{"step": 1, "epoch": 1, "rmse": 3}', '{"epoch": 1, "train_rmse": 3, "more": 7}', '{"epoch": 2, "train_rmse": 4}'],
                 ({"epoch": 2, "train_rmse": 4, "more": 7}, 3))):
            run = self.add_run(name)
            (run / "config.json").write_text(json.dumps({"metrics": metrics}))
            lines.append('{"end": "result", "accuracy": 0.5}')
            (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
            row = next(row for row in self.rows() if row["name"] == name)
            self.assertEqual((row["last"], row["row"]["best"]), expected, name)
            self.assertEqual(self.news(name)["metrics"][-1], {"end": "result", "accuracy": 0.5})
        # The text has the columns that the runs have, and the curve of the main metric.
        text = self.succeed([*job.MONITOR, "--text"], COLUMNS="100").splitlines()
        self.assertEqual(text[0].split(), ["run", "state", "epoch", "step", "metric", "loss", "or", "metric", "by", "step"])
        rows = {line.split()[0]: line.split()[1:] for line in text[1:]}
        self.assertEqual(rows["steps"], ["-", "2", "5.0000", "\u2581\u2588"])
        self.assertEqual(rows["epochs"][:3], ["1/?", "1", "4.0000"])
        self.write_page(self.runs / "steps", json.dumps({"runs": [{"steps": 8, "state": "stopped", "begun": 100, "written": 110,
                                                                   "config": {"metrics": metrics}}]}))
        text = self.succeed([*job.MONITOR, "--text"], COLUMNS="100")
        self.assertRegex(text, "steps +stopped +- +2/8 +5.0000 +0.2 ")
        self.assertNotIn("left", text)

    def test_notes(self):
        hostile = "</script><b>\n=1+1\x00\u202e\U0001f600"
        run = self.add_run("run")
        (run / "notes.txt").write_text(hostile)
        self.assertEqual(self.rows()[0]["row"]["notes"], hostile)
        self.assertEqual(self.ask("/stop?run=run", "POST", body=b"x")[0], 413)
        secret = self.folder / "secret"
        secret.write_text("secret")
        (run / "notes.txt").unlink()
        (run / "notes.txt").symlink_to(secret)
        self.assertEqual(self.rows()[0]["row"]["notes"], "")

    def test_token(self):
        # The folder of runs keeps the token. A file that others can read, a link, or another text is replaced.
        token_of = runpy.run_path(job.MONITOR[1])["stored_token"]
        self.assertNotEqual(token_of(self.runs), token_of(self.runs))  # there is no folder yet
        self.runs.mkdir()
        token, file = token_of(self.runs), self.runs / ".monitor-token"
        self.assertEqual(token_of(self.runs), token)
        self.assertEqual((file.read_text(), file.stat().st_mode & 0o777), (token, 0o600))
        other = self.folder / "other"
        other.write_text(24 * "a")
        other.chmod(0o600)

        def replace_by_link():
            file.unlink()
            file.symlink_to(other)

        for damage in (lambda: file.chmod(0o644), replace_by_link, lambda: file.write_text(""), lambda: file.write_bytes(24 * b"\xff")):
            old = token_of(self.runs)
            damage()
            self.assertNotIn(token_of(self.runs), (old, 24 * "a"))
            self.assertEqual(token_of(self.runs), file.read_text())
            self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        self.assertEqual(other.read_text(), 24 * "a")
        file.unlink()
        file.mkdir()
        self.assertNotEqual(token_of(self.runs), token_of(self.runs))

    def test_access(self):
        self.add_run("run")
        for target in ("/", "/data", "/report?run=run"):
            for headers in ({"token": False}, {"token": False, "X_Token": ""}, {"token": False, "X_Token": self.token[:-1]},
                            {"Host": "evil.example"}, {"Host": f"evil.example:{self.url.port}"}, {"Host": "127.0.0.1.evil.example"},
                            {"Host": ""}, {"Origin": "http://evil.example"}, {"Origin": "null"},
                            {"Origin": "http://127.0.0.1:1"}, {"Origin": f"https://127.0.0.1:{self.url.port}"}):
                status, text = self.ask(target, **headers)
                self.assertEqual(status, 403, (target, headers, text))
                self.assertNotIn("run", text.replace("the address with", ""))
                self.assertNotIn(self.token, text)
            for host in (f"localhost:{self.url.port}", "127.0.0.1:9000"):  # the other end of ssh -L
                self.assertNotEqual(self.ask(target, Host=host, Origin=f"http://{host}")[0], 403)
        self.assertEqual(self.ask(f"/?token={self.token}", token=False)[0], 200)
        for target in ("/data", "/report?run=run", "/trials/run/data"):  # the address of a page alone may have the token
            mark = "&" if "?" in target else "?"
            self.assertEqual(self.ask(f"{target}{mark}token={self.token}", token=False)[0], 403, target)
        # It listens on the loopback address only.
        with socket.socket() as probe:
            probe.settimeout(2)
            self.assertNotEqual(probe.connect_ex(("127.0.0.2", self.url.port)), 0)

    def test_report_does_not_learn_the_token(self):
        # The address of a report has a key, which opens this report and nothing else.
        sweep = self.add_run("a sweep")
        for run in (self.add_run("mine"), self.add_run("other"), sweep, sweep / "trials" / "1"):
            run.mkdir(parents=True, exist_ok=True)
            (run / "report.html").write_text(f"report of {run.name}")
        (sweep / "results.jsonl").write_text('{"trial": 1}\n')
        trial = self.trials("a sweep")["runs"][0]["page"]
        keys = {name: self.news(name)["page"] for name in ("mine", "other", "a sweep")}
        self.assertEqual(len({trial, *keys.values()}), 4)
        for target, key in ((f"/report?run={urllib.parse.quote(name)}", key) for name, key in keys.items()):
            self.assertEqual(self.ask(f"{target}&key={key}", token=False)[0], 200, target)
        self.assertEqual(self.ask(f"/trials/a%20sweep/report?run=1&key={trial}", token=False), (200, "report of 1"))
        for key in (keys["other"], trial, "", self.token):
            self.assertEqual(self.ask(f"/report?run=mine&key={key}", token=False)[0], 403)
        for key in (f"key={keys['mine']}", f"token={keys['mine']}"):
            for target, method in (("/?", "GET"), ("/data?", "GET"), ("/stop?run=mine&", "POST")):
                self.assertEqual(self.ask(target + key, method, token=False)[0], 403, target)
        self.assertEqual(self.ask("/data", token=False, X_Token=keys["mine"])[0], 403)

    def test_paths_stay_in_the_folder(self):
        secret = self.folder / "secret"
        secret.mkdir()
        for name in ("config.json", "metrics.jsonl", "report.html"):
            (secret / name).write_text('{"secret": 1}')
        run = self.add_run("run")
        (run / "report.html").symlink_to(secret / "report.html")
        (run / "metrics.jsonl").symlink_to(secret / "metrics.jsonl")
        (self.runs / "link").symlink_to(secret)
        pipe = self.add_run("pipe")
        os.mkfifo(pipe / "report.html")
        os.mkfifo(pipe / "metrics.jsonl")
        # The trials of a sweep are a link, and the results of another one name something that is not a trial.
        (self.add_run("elsewhere") / "trials").symlink_to(self.folder)
        (self.add_run("odd") / "trials" / "1").mkdir(parents=True)
        (self.runs / "odd" / "results.jsonl").write_text('{"trial": "../../../secret"}\n{"trial": 1}\n[1]\n')
        self.assertEqual(self.trials("odd")["runs"], [self.trials("odd")["runs"][0] | {"name": "1", "alive": False}])
        # A journal makes this run a sweep, and one of its trials is a link.
        (self.add_run("journal") / "trials").symlink_to(self.folder)
        (self.add_run("part") / "trials").mkdir()
        (self.runs / "part" / "trials" / "1").symlink_to(secret)
        for name in ("journal", "part"):
            (self.runs / name / "journal.jsonl").touch()
            (self.runs / name / "results.jsonl").write_text('{"trial": 1}\n')
        trial = self.trials("part")["runs"][0]
        self.assertEqual((trial["page"], trial["alive"], trial["last"]), (False, False, None))
        texts = [self.ask(target)[1] for target in ("/trials/part/data?run.1=", "/data?run.run=&run.link=&run.pipe=&run.../secret=", "/report?run=run", "/report?run=pipe")]
        for target in ("/report?run=link", "/report?run=../secret", "/report?run=..%2Fsecret", "/report?run=run/../../secret",
                       f"/report?run={urllib.parse.quote(str(secret))}", "/report?run=", "/report?run=.", "/report",
                       "/../secret/report.html", "/runs/run/config.json", "//secret/report.html", "/report.html", "/stop?run=run",
                       "/trials/elsewhere/data", "/trials/run/data", "/trials/..%2F/data", "/trials/../data", "/trials//data",
                       "/trials/link/", "/trials/journal/data", "/trials/part/report?run=1", "/trials/odd/report?run=../../../secret", "/trials/odd/report?run=2",
                       "/trials/odd/trials/odd/data"):
            status, text = self.ask(target)
            self.assertEqual(status, 404, target)
            texts.append(text)
        self.assertNotIn("secret", "".join(texts).replace(str(self.folder), ""))

    def test_files_larger_than_memory(self):
        # These files are sparse, so that they are long but need no disk.
        self.add_run("good")
        for name in ("report.html", "config.json", "results.jsonl", "metrics.jsonl"):
            run = self.add_run(name)
            (run / "trials").mkdir()
            with open(run / name, "wb") as file:
                file.truncate(1 << 40)
        said = "expected at most 256 MiB, got 1048576 MiB"
        for name in ("report.html", "config.json"):
            self.assertIn(f"{name}: {said}", self.news(name)["note"])
        self.assertEqual(self.news("metrics.jsonl")["metrics"], [])
        for target in ("/report?run=report.html", "/trials/results.jsonl/data"):
            status, text = self.ask(target)
            self.assertEqual(status, 500)
            self.assertIn(said, text)
        self.assertIn("good", self.succeed([*job.MONITOR, "--text"]))

    def test_invalid_and_large_requests(self):
        with socket.create_connection((self.url.hostname, self.url.port), job.LIMIT) as client:
            client.sendall(f"GET http://[ HTTP/1.1\r\nHost: {self.url.netloc}\r\n\r\n".encode())
            self.assertEqual(client.recv(12), b"HTTP/1.0 400")
        with socket.create_connection((self.url.hostname, self.url.port), job.LIMIT) as client:  # leaves at once
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET /data")
        for target, method, more, status in (
                ("/data?" + 20_000 * "a", "GET", {}, 431), ("/data?" + 70_000 * "a", "GET", {}, 414),
                ("/data", "GET", {"X_Long": 20_000 * "a"}, 431), ("/data", "POST", {"body": b"x"}, 413),
                ("/data", "PUT", {}, 501), ("/data", "GET", {}, 200)):  # the monitor still runs
            self.assertEqual(self.ask(target, method, **more)[0], status, (target[:9], method))

    def test_stop(self):
        self.add_run("over")
        self.assertEqual(self.ask("/stop?run=over", "POST"), (409, "over is not running"))
        self.assertFalse((self.runs / "over" / "stop").exists())
        training = self.start(job.train(1, *job.TINY, "--epochs", "100000", "--run-name", "live"))
        run = self.runs / "live"
        self.assertTrue(self.wait_for(training, (run / "metrics.jsonl").exists))
        self.assertEqual(self.news("live")["state"], "running")
        self.refuse(job.train(1, "--resume", "--run-name", "none"), "none")
        for target, method, headers in (("/stop?run=live", "GET", {}), ("/stop?run=live", "POST", {"token": False}),
                                        ("/stop?run=live", "POST", {"Origin": "http://evil.example"}),
                                        ("/stop?run=../live", "POST", {}), ("/stop", "POST", {})):
            self.assertIn(self.ask(target, method, **headers)[0], (403, 404), target)
        time.sleep(0.5)
        self.assertIsNone(training.poll())
        self.assertEqual(self.ask("/stop?run=live", "POST")[0], 200)
        out = self.expect_end(training)
        steps = len(job.step_lines(run))
        self.assertIn(f"stopped after step {steps};", out)
        self.assertEqual(max(int(path.stem[5:]) for path in (run / "checkpoint").iterdir()), steps)
        self.assertEqual(self.news("live")["state"], "stopped")

        # A killed run writes no state, but its lock is released.
        training = self.start(job.train(1, *job.TINY, "--epochs", "100000", "--run-name", "killed"))
        self.assertTrue(self.wait_for(training, (self.runs / "killed" / "report.html").exists))
        job.kill_job(training)
        training.communicate()
        self.assertEqual(self.news("killed")["state"], "ended early")

    def test_text(self):
        self.assertIn("run", self.succeed([*job.MONITOR, "--text"]))
        run = self.train(1, "first", *job.TINY, "--epochs", "2")
        shutil.copytree(run, self.runs / "bad\x1b[2Jname")
        _, *lines = self.succeed([*job.MONITOR, "--text"]).splitlines()
        self.assertEqual(len(lines), 2)
        self.assertNotIn("\x1b", "".join(lines))
        words = [line for line in lines if line.startswith("first")][0].split()
        epoch = job.epoch_lines(run)[-1]
        self.assertEqual(words[1:4] + words[5:6], ["done", "2/2", "40/40", f"{epoch['test_accuracy']:.4f}"])
        self.refuse([*job.MONITOR, "--stop", "first"], "first is not running")
        # For a sweep, it prints the number of trials per state, and the best.
        shutil.rmtree(self.runs)
        (self.add_run("sweep") / "trials").mkdir()
        rows = [{"trial": i + 1, "state": state, "last_epoch": {"validation_accuracy": i / 8}}
                for i, state in enumerate(("finished", "failed", "finished", "running"))]
        (self.runs / "sweep" / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for rank_by, shown in ((None, "-"), ("validation_accuracy", "0.2500"), ("validation_loss", "-")):
            data = {"sweep": {"state": "done", "best": "3"} | ({"rank_by": {"name": rank_by}} if rank_by else {})}
            self.write_page(self.runs / "sweep", json.dumps(data))
            self.assertRegex(self.succeed([*job.MONITOR, "--text"], COLUMNS="100"),
                             f"sweep +done +best: trial 3, {shown}; 2 finished, 1 failed, 1 ended early\n$")


job.main()
