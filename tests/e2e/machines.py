# Tests a job on two machines with a slow link between them: network, host-name and IPC namespaces, joined by a virtual
# cable whose rate a traffic shaper limits. Needs root, and the programs ip and tc.
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

import job

RANKS = 4  # two on each machine
OPTIONS = ["--width", "16", "--depth", "1", "--batch-size", "100", "--threads", "1", "--seed", "5"]


def why_skipped():
    if not job.is_mpich():
        return "no mpiexec of MPICH"
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [name for name in ("ip", "tc", "unshare") if not shutil.which(name)]
    if missing:
        return f"no {', '.join(missing)} (Debian: iproute2)"
    for command in (["ip", "netns", "add", f"rg{os.getpid()}"], ["ip", "netns", "del", f"rg{os.getpid()}"]):
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            return f"no network namespaces here: {made.stderr.strip()}"
    return None


def output(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


@unittest.skipIf(why_skipped(), why_skipped())
class Machines(job.JobTest):
    def setUp(self):
        super().setUp()
        self.names = [f"rg{os.getpid()}{letter}" for letter in "ab"]
        for name in self.names:
            output("ip", "netns", "add", name)
            self.addCleanup(self.remove, name)
        output("ip", "link", "add", "v0", "netns", self.names[0], "type", "veth", "peer", "name", "v0", "netns",
               self.names[1])
        for i, name in enumerate(self.names):
            output("ip", "-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "v0")
            for device in ("v0", "lo"):
                output("ip", "-n", name, "link", "set", device, "up")
        for name in self.names:  # UCX uses only links that are running
            self.assertTrue(job.within_limit(lambda: " state UP " in output("ip", "-n", name, "link", "show", "v0")))
        # mpiexec calls this in place of ssh, with the address and a command line.
        self.launcher = self.folder / "launcher"
        self.launcher.write_text(f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in *.1) name={self.names[0]} ;; *) name={self.names[1]} ;; esac
shift
exec ip netns exec $name unshare --uts --ipc sh -c "hostname $name; $*"
""")
        self.launcher.chmod(0o755)

    def pids(self, name):
        return list(map(int, output("ip", "netns", "pids", name).split()))

    def remove(self, name):
        for pid in self.pids(name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        output("ip", "netns", "del", name)

    def limit(self, rate):
        for name in self.names:
            output("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", "v0", "root", "tbf", "rate", rate,
                   "burst", "256kbit", "latency", "200ms")

    def cable(self, state):
        output("ip", "-n", self.names[0], "link", "set", "v0", state)

    def begin(self, name, deadline, *options):
        """Starts a training with two ranks on each machine. A rank writes its standard error to a file, which does not
        need the cable."""
        command = ["ip", "netns", "exec", self.names[0], job.MPIEXEC, "-launcher", "ssh", "-launcher-exec",
                   str(self.launcher), "-hosts", "10.77.0.1,10.77.0.2", "-iface", "v0", "-n", str(RANKS), "-ppn", "2",
                   "sh", "-c", f'exec "$0" "$@" 2>{self.folder}/{name}.$PMI_RANK', *job.train(1, *OPTIONS, *options),
                   "--run-name", name, "--runs", str(self.runs)]
        return self.start(command, RG_DEADLINE_S=str(deadline))

    def errors(self, name):
        return [(self.folder / f"{name}.{rank}").read_text() for rank in range(RANKS)]

    def after_steps(self, process, name, steps):
        metrics = self.runs / name / "metrics.jsonl"
        self.assertTrue(self.wait_for(process, lambda: metrics.exists() and
                                      metrics.read_text().count('{"step"') >= steps))

    def test_slow_link(self):
        """A training between machines gives the same bits as one on a single machine, and MPI_Finalize ends."""
        one = self.train(RANKS, "one", *OPTIONS, "--steps", "4")
        for rate in ("10mbit", "1gbit"):
            self.limit(rate)
            result = self.finish(self.begin(rate, 60, "--steps", "4"))
            self.assertEqual((result.code, self.errors(rate)), (0, [""] * RANKS), result)
            self.assertEqual(job.step_lines(self.runs / rate), job.step_lines(one))
        result = self.finish(self.begin("bf16", 60, "--steps", "4", "--wire", "bf16"))
        self.assertEqual((result.code, self.errors("bf16")), (0, [""] * RANKS), result)
        rounded, exact = job.losses(self.runs / "bf16"), job.losses(one)
        self.assertEqual(rounded[0], exact[0])
        self.assertNotEqual(rounded[1:], exact[1:])
        for a, b in zip(rounded, exact, strict=True):
            self.assertAlmostEqual(a, b, delta=0.02 * b)  # gradients round by 1/256 at most

    def test_cut(self):
        """A cable that is cut for two seconds only delays a training."""
        process = self.begin("healed", 30, "--epochs", "1000")
        self.after_steps(process, "healed", 4)
        self.cable("down")
        time.sleep(2)
        self.cable("up")
        self.after_steps(process, "healed", len(job.step_lines(self.runs / "healed")) + 20)
        (self.runs / "healed" / "stop").touch()
        self.assertEqual(self.finish(process).code, 0)

    def test_cut_for_good(self):
        """All ranks end, and each names those of the other machine, the step and what they were summing."""
        process = self.begin("cut", 3, "--epochs", "1000")
        self.after_steps(process, "cut", 4)
        pids = [pid for name in self.names for pid in self.pids(name)
                if pathlib.Path(f"/proc/{pid}/comm").read_text() == "train_cifar\n"]
        self.assertEqual(len(pids), RANKS)
        self.cable("down")
        self.assertTrue(job.within_limit(lambda: not any(map(job.lives, pids))))
        self.assertNotEqual(self.finish(process).code, 0)
        for rank, error in enumerate(self.errors("cut")):
            found = re.search(r"error: allreduce .*step \d+\); no word from (.*): stopped, or slow", error)
            self.assertTrue(found, error)
            self.assertEqual(re.findall(r"rank (\d) on \S+", found[1]), ["2", "3"] if rank < 2 else ["0", "1"], error)


if __name__ == "__main__":
    job.main()
