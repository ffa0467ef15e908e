# Tests the same training on 1 to 4 ranks: some results must agree closely, others bit for bit.
import re
import shutil
import sys

import job

SYNC = ["--sync-bn", "--lr", "0.001", "--augment", "none", "--shuffle", "never", "--steps", "20"]


def largest_difference(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


class Ranks(job.JobTest):
    def test_sync_bn_does_not_depend_on_ranks(self):
        # 50 images are divided into 25+25, 17+17+16 and 13+13+12+12.
        one = job.losses(self.train(1, "one", *job.TINY, *SYNC))
        self.assertEqual(len(one), 20)
        for ranks in (2, 3, 4):
            several = job.losses(self.train(ranks, f"sync-{ranks}", *job.TINY, *SYNC))
            self.assertLess(largest_difference(several, one), 3e-4, f"{ranks} ranks")
        # The check is sensitive: with batch statistics per rank, the training differs.
        local = job.losses(self.train(2, "local", *job.TINY, *SYNC, "--no-sync-bn"))
        self.assertGreater(largest_difference(local, one), 3e-3)

    def test_same_bits_for_repeats_and_threads(self):
        options = ["--width", "8", "--depth", "2", "--steps", "12", "--seed", "3"]
        for ranks in (1, 2, 3):
            first = self.train(ranks, f"{ranks}-first", *options, "--threads", "1")
            for name, threads in (("again", "1"), ("threads", "3")):
                other = self.train(ranks, f"{ranks}-{name}", *options, "--threads", threads)
                self.assert_same_training(other, first)

    def test_ranks_with_different_commands(self):
        def command(first, second, environment=()):
            program = job.train(1, *job.TINY, "--steps", "2")
            return [job.MPIEXEC, "-n", "1", *environment, *program, *first, ":", "-n", "1", *program, *second]

        for option, one, other in (("lr", "0.1", "0.2"), ("seed", "1", "2"), ("shuffle", "epoch", "never"),
                                   ("augment", "flip", "none"), ("precision", "fp32", "fp32-strict")):
            self.refuse(command([f"--{option}", one], [f"--{option}", other]), "options: expected the same",
                        f"--{option} {one} (rank 0 ", f"--{option} {other} (rank 1 ")
            self.assertFalse(self.runs.exists())
        self.succeed(command(["--threads", "1"], ["--threads", "2"]))
        # A build for this machine alone may have a single instruction set.
        error = self.refuse(job.train(1, *job.TINY, "--steps", "0"), "RG_ISA", RG_ISA="none")
        *others, best = re.search(r"of this CPU \((.*?)\)", error)[1].split(", ")
        for other in others[:1]:
            self.refuse(command([], [], ["-env", "RG_ISA", other]), "instruction set: expected the same",
                        f"{other} (rank 0 ", f"{best} (rank 1", "set RG_ISA")
        for name, option, one, other in ((["train_cifar", "sweep"], "--grid", "lr=1", "lr=2"),
                                         (["train_digits"], "--epochs", "1", "2")):
            program = [str(job.BUILD / name[0]), *name[1:], option]
            self.refuse([job.MPIEXEC, "-n", "1", *program, one, ":", "-n", "1", *program, other], "expected the same")


    def on_two_machines(self, *options):
        """Returns the command of a training on two ranks, each in a folder of its own: a and b."""
        program = job.train(1, *job.TINY, "--runs", "runs", *options)
        return [job.MPIEXEC, "-n", "1", "-wdir", str(self.folder / "a"), *program, ":",
                "-n", "1", "-wdir", str(self.folder / "b"), *program]

    def refuse_ranks(self, command, *words):
        self.assertEqual(self.run_command(command).code, 76)
        self.refuse(command, *words)

    def test_ranks_with_different_files(self):
        for name, seed in (("a", "1"), ("b", "2")):
            run = self.train(1, f"start-{seed}", *job.TINY, "--seed", seed, "--steps", "0")
            (self.folder / name).mkdir()
            shutil.copy(run / "model.safetensors", self.folder / name / "start.safetensors")
        self.refuse_ranks(self.on_two_machines("--init", "start.safetensors", "--steps", "2"),
                          "state of the training: expected the same", "parameters with checksum", "(rank 0 ", "(rank 1 ",
                          "same files for --init")
        self.assertFalse((self.folder / "a" / "runs").exists())
        # Checkpoints of the same step, with other options, and if these are given again, with other values
        for name, rate in (("a", "0.1"), ("b", "0.2")):
            self.succeed(job.train(1, *job.TINY, "--steps", "2", "--lr", rate, "--run-name", "run",
                                   "--runs", str(self.folder / name / "runs")))
        resume = ["--resume", "--run-name", "run", "--steps", "4"]
        self.refuse_ranks(self.on_two_machines(*resume), "options: expected the same", "--lr 0.1 (rank 0 ")
        self.refuse_ranks(self.on_two_machines(*resume, "--lr", "0.1"), "parameters with checksum",
                          "same files for --init and --resume")

    def test_ranks_with_different_versions(self):
        program = job.BUILD / "train_cifar"
        version = self.succeed([str(program), "--version"]).split()[1]
        other = self.folder / "train_cifar"
        content = program.read_bytes()
        self.assertIn(f"{version} (".encode(), content)
        other.write_bytes(content.replace(f"{version} (".encode(), b"9" + f"{version} ("[1:].encode()))
        other.chmod(0o755)
        self.refuse_ranks([job.MPIEXEC, "-n", "1", str(program), ":", "-n", "1", str(other)],
                          "program: expected the same", f"version {version} (", f"version 9{version[1:]} (")
        self.assertFalse(self.runs.exists())


class Launchers(job.JobTest):
    def test_launcher_of_another_mpi(self):
        command = job.train(1, *job.TINY, "--steps", "0")
        for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
            self.assertEqual(self.run_command(command, **{name: "3"}).code, 1)
            self.refuse(command, "launcher: expected 3 ranks", f"as {name} says", "whose MPI is ", f"unset {name}",
                        **{name: "3"})
        self.assertFalse(self.runs.exists())
        for variables in ({"OMPI_COMM_WORLD_SIZE": "1"}, {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"},
                          {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}):
            self.succeed(command, **variables)
        # mpiexec may start its helpers in a job step of several processes.
        self.succeed([job.MPIEXEC, "-n", "1", *command], SLURM_STEP_NUM_TASKS="4")


if not job.MPIEXEC:
    print("skipped: no mpiexec, or a build without MPI")
    sys.exit(77)
job.main()
