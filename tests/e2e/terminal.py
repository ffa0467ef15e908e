# Tests what a training prints on terminals of several widths, and to a pipe.
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import job

ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
OPTIONS = [*job.TINY, "--batch-size", "50", "--epochs", "2"]


class Terminal(job.JobTest):
    def shown(self, columns, command, **environment):
        """Runs a command on a terminal of this width and returns its output with the escape sequences."""
        terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RG_") and k != "NO_COLOR"}
        process = subprocess.Popen(command, cwd=self.folder, env=kept | {"TERM": "xterm"} | environment,
                                   stdin=subprocess.DEVNULL, stdout=end, stderr=end, start_new_session=True)
        self.addCleanup(lambda: process.poll() is None and job.kill_job(process))
        os.close(end)
        output = b""
        try:
            while block := os.read(terminal, 4096):
                output += block
        except OSError:
            pass  # Linux's way to say that the other end is closed
        os.close(terminal)
        self.assertEqual(process.wait(job.LIMIT), 0)
        return output.decode()

    def test_widths_and_colours(self):
        for columns in (80, 200):
            text = self.shown(columns, job.train(1, *OPTIONS))
            self.assertRegex(text, r"\x1b\[3\dmdone")
            # The progress bar overwrites its line.
            for line in re.split("[\r\n]+", ESCAPE.sub("", text)):
                if "runs/" not in line:  # a path is never broken
                    self.assertLessEqual(len(line), columns, line)

    def test_no_colour(self):
        for environment, colours in (({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)):
            text = self.shown(80, job.train(1, *OPTIONS), **environment)
            self.assertEqual(re.search(r"\x1b\[3\dm", text) is not None, colours, environment)

    def test_nothing(self):
        for command in (job.train(1, *OPTIONS), [str(job.BUILD / "train_cifar"), "sweep", *OPTIONS, "--grid", "lr=0.05,0.1"]):
            result = self.run_command([*command, "--progress", "none"])
            self.assertEqual(tuple(result), (0, "", ""))
        self.refuse(job.train(1, *OPTIONS, "--progress", "none", "--profile"), "--progress none", "--profile")

    def test_no_report(self):
        quiet = self.train(1, "quiet", *OPTIONS, "--no-report")
        self.assertFalse((quiet / "report.html").exists())
        loud = self.train(1, "loud", *OPTIONS)
        self.assertTrue((loud / "report.html").exists())
        self.assertEqual((quiet / "model.safetensors").read_bytes(), (loud / "model.safetensors").read_bytes())
        self.succeed(job.train(1, "--resume", "--run-name", "loud", "--epochs", "3", "--no-report"))
        self.assertFalse((loud / "report.html").exists())  # the old one would show an old state
        sweep = [str(job.BUILD / "train_cifar"), "sweep", *OPTIONS, "--grid", "lr=0.05", "--no-report"]
        self.refuse(sweep, "--no-report", "is for a single training")

    def test_pipe(self):
        for ranks in job.rank_counts(1, 2):
            text = self.succeed(job.train(ranks, *OPTIONS))
            self.assertNotRegex(text, "[\x1b\r]")
            self.assertEqual(len(re.findall("^epoch ./2  train loss", text, re.M)), 2)
            self.assertIn("\ndone after step", text)


job.main()
