# Tests the job for SLURM with stand-ins for the commands of a cluster: its first start, its restart, a signal, and each
# exit status of the training.
import os
import pathlib
import shutil
import signal
import subprocess

import job

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Trains until it gets a signal. Then it writes a checkpoint, and its exit status means that there is more to do.
MPIEXEC = """#!/bin/sh
printf '%s\\n' "$*" >> calls
mkdir -p runs/slurm-17/checkpoint
[ ! -e status ] || exit $(cat status)
trap 'touch runs/slurm-17/checkpoint/step-00000005.safetensors; exit 75' TERM
touch training
while :; do sleep 0.01; done
"""


class Slurm(job.JobTest):
    def setUp(self):
        super().setUp()
        (self.folder / "bin").mkdir()
        (self.folder / "tools").symlink_to(ROOT / "tools")
        for name, text in (("mpiexec", MPIEXEC), ("scontrol", '#!/bin/sh\necho "$@" >> requeued\n')):
            (self.folder / "bin" / name).write_text(text)
            (self.folder / "bin" / name).chmod(0o755)

    def submit(self, *options):
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return self.start(["sh", str(ROOT / "tools" / "slurm.sh"), *options], PATH=path, SLURM_JOB_ID="17",
                          SLURM_SUBMIT_DIR=str(self.folder), SLURM_NTASKS="8", SLURM_NTASKS_PER_NODE="2",
                          SLURM_CPUS_PER_TASK="3")

    def read(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def test_requeues_and_resumes(self):
        process = self.submit("--epochs", "5")
        self.assertTrue(self.wait_for(process, (self.folder / "training").exists))
        process.send_signal(signal.SIGUSR1)
        result = self.finish(process)
        self.assertEqual((result.code, self.read("requeued")), (75, ["requeue 17"]), result.err)
        start = "-n 8 -ppn 2 build/train_cifar --threads 3"
        self.assertEqual(self.read("calls"), [f"{start} --run-name slurm-17 --epochs 5"])
        (self.folder / "status").write_text("0")
        result = self.finish(self.submit("--epochs", "5"), 0)
        self.assertEqual(self.read("calls")[1:], [f"{start} --resume --run-name slurm-17"])
        self.assertEqual(len(self.read("requeued")), 1)

    def test_error(self):
        (self.folder / "status").write_text("1")
        self.assertEqual(self.finish(self.submit()).code, 1)
        self.assertEqual((len(self.read("calls")), self.read("requeued")), (1, []))

    def test_other_run_name(self):
        # The restarted job would not find a run of another name.
        for wrong in (["--runs", "elsewhere"], ["--run-name=mine"], ["--epochs", "5", "--resume"]):
            result = self.finish(self.submit(*wrong))
            self.assertEqual((result.code, self.read("calls")), (2, []), wrong)
            self.assertIn(f"got {wrong[-1] if len(wrong) > 2 else wrong[0]}:", result.err)

    def test_checked(self):
        if not shutil.which("shellcheck"):
            self.skipTest("there is no shellcheck")
        result = subprocess.run(["shellcheck", *(ROOT / "tools" / name for name in ("slurm.sh", "run.sh", "gpu_check.sh"))],
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout)


job.main()
