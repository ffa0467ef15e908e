# Tests a job on machines with slow links between them, made by tools/bench/cluster.py. Needs root, and the programs ip
# and tc.
import pathlib
import re
import sys
import time
import unittest

import job

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools" / "bench"))
import cluster  # noqa: E402

RANKS = 4
OPTIONS = ["--width", "16", "--depth", "1", "--batch-size", "100", "--threads", "1", "--seed", "5"]


def why_skipped():
    return cluster.why_impossible() if job.is_mpich() else "no mpiexec of MPICH"


@unittest.skipIf(why_skipped(), why_skipped())
class Machines(job.JobTest):
    def begin(self, machines, name, deadline, *options):
        """Starts a training with four ranks. A rank writes its standard error to a file, which needs no cable."""
        words = ["sh", "-c", f'exec "$0" "$@" 2>{self.folder}/{name}.$PMI_RANK', *job.train(1, *OPTIONS, *options),
                 "--run-name", name, "--runs", str(self.runs)]
        return self.start(machines.command(RANKS // len(machines.names), *words, mpiexec=job.MPIEXEC),
                          RG_DEADLINE_S=str(deadline))

    def errors(self, name):
        return [(self.folder / f"{name}.{rank}").read_text() for rank in range(RANKS)]

    def after_steps(self, process, name, steps):
        metrics = self.runs / name / "metrics.jsonl"
        self.assertTrue(self.wait_for(process, lambda: metrics.exists() and
                                      metrics.read_text().count('{"step"') >= steps))

    def test_slow_links(self):
        """A training between machines ends. With workers, it gives the same bits as one on a single machine."""
        one = self.train(RANKS, "one", *OPTIONS, "--steps", "4", "--workers", "4")
        for nodes, rate in ((2, "10mbit"), (4, "100mbit")):
            run = self.train_on(nodes, rate, "--workers", "4")
            self.assertEqual(job.step_lines(run), job.step_lines(one))
        # One pair of nodes after another adds like two nodes of two ranks.
        self.assertEqual(job.step_lines(self.train_on(2, "1gbit")), job.step_lines(self.train_on(4, "1gbit")))

    def test_bf16(self):
        """Gradients that travel in bf16 change a training a little."""
        exact, rounded = job.losses(self.train_on(2, "1gbit")), job.losses(self.train_on(2, "1gbit", "--wire", "bf16"))
        self.assertEqual(rounded[0], exact[0])
        self.assertNotEqual(rounded[1:], exact[1:])
        for a, b in zip(rounded, exact, strict=True):
            self.assertAlmostEqual(a, b, delta=0.02 * b)  # gradients round by 1/256 at most

    def train_on(self, nodes, rate, *options):
        """Trains for four steps on machines with links of this rate, and returns the run's folder."""
        name = "-".join([str(nodes), rate, *options])
        with cluster.Cluster(nodes) as machines:
            machines.limit(rate)
            result = self.finish(self.begin(machines, name, 60, "--steps", "4", *options))
        self.assertEqual((result.code, self.errors(name)), (0, [""] * RANKS), result)
        return self.runs / name

    def test_cut(self):
        """A cable that is cut for two seconds only delays a training."""
        with cluster.Cluster(2) as machines:
            process = self.begin(machines, "healed", 30, "--epochs", "1000")
            self.after_steps(process, "healed", 4)
            machines.cable(0, "down")
            time.sleep(2)
            machines.cable(0, "up")
            self.after_steps(process, "healed", len(job.step_lines(self.runs / "healed")) + 20)
            (self.runs / "healed" / "stop").touch()
            self.assertEqual(self.finish(process).code, 0)

    def test_cut_for_good(self):
        """All ranks end, and each names those of the other machine, the step and what they were summing."""
        with cluster.Cluster(2) as machines:
            process = self.begin(machines, "cut", 3, "--epochs", "1000")
            self.after_steps(process, "cut", 4)
            pids = [pid for node in range(2) for pid in machines.pids(node)
                    if pathlib.Path(f"/proc/{pid}/comm").read_text() == "train_cifar\n"]
            self.assertEqual(len(pids), RANKS)
            machines.cable(0, "down")
            self.assertTrue(job.within_limit(lambda: not any(map(job.lives, pids))))
            self.assertNotEqual(self.finish(process).code, 0)
        for rank, error in enumerate(self.errors("cut")):
            found = re.search(r"error: allreduce .*step \d+\); no word from (.*): stopped, or slow", error)
            self.assertTrue(found, error)
            self.assertEqual(re.findall(r"rank (\d) on \S+", found[1]), ["2", "3"] if rank < 2 else ["0", "1"], error)


if __name__ == "__main__":
    job.main()
