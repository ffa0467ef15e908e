# Executes the command lines that the documents, --help, `next:` and `watch:` print. Each must work as it is printed.
#
# A test runs in a folder that looks like the top folder of the source, and that has what the
# commands name: photos, runs/NAME, IMAGE.png, and a home folder with ~/photos, ~/data and more. Trainings are cut short
# by --steps 1, and have two ranks at most. The commands of PARSED are not executed.
import os
import pathlib
import re
import shlex
import shutil
import unittest

import job

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("core", "data", "gpu", "models", "par", "tests", "tools")
# The first words of commands. Other indented lines of documents are output or code.
FIRST = re.compile(r"(\w+=\S+ )*(sh|meson|ninja|mpiexec|g\+\+|cc|export|sbatch|aws|python3|npm|chromium|curl|ssh|apt\S*|"
                   r"(sh )?tools/\S+|build/\S+) (?!.*\[--)|build/\S+$")
# Patterns of commands that are not executed, with the reasons.
PARSED = {
    r"^meson|^ninja|tools/(quickstart|test)\.sh": "they build for minutes; install.py and subproject.py build",
    r"^(g\+\+|cc|export) ": "they need an installation; install.py executes them",
    r"get_cifar10|s3://|^npm|^curl": "they need a network; cloud.py has a server",
    r"gpu_check": "it needs a GPU; gpu_check.py tests it",
    r"^sbatch": "it needs SLURM; slurm.py tests it",
    r"--elastic|cluster\.py": "they need machines; machines.py has some",
    r"vs_pytorch|vs_onnxruntime|pillow|layers\.py": "they need other packages, and minutes",
    r"build/bench_": "they measure for minutes",
    r"^chromium": "it may be absent; browser.py uses it",
}
TRAINING = ("train_cifar", "train_digits", "train_digits_angles", "own_network", "quick94", "autoencoder", "from_csv",
            "two_inputs", "unet")
COMMANDS = ("train", "predict", "export", "sweep", "inspect", "help")


def documents():
    found = [*ROOT.glob("*.md")]
    for folder in FOLDERS:
        found += (path for path in (ROOT / folder).rglob("*.md") if "results" not in path.parts)
    return sorted(found)


def commands_in(text):
    """Returns the command lines of a text, without comments. A line continues after a backslash or within quotes."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("\\\n", " ")
    found, command = [], ""
    for line in text.splitlines():
        if command:
            command += "\n" + line
        elif line.startswith("  ") and FIRST.match(line.strip()):
            command = line.strip()
        if command and command.count('"') % 2 == 0:
            found.append(re.sub(r" +# .*", "", command))
            command = ""
    return found


def examples_in(text):
    """Returns the examples of a --help."""
    return [line.strip() for line in text.partition("\nExamples\n")[2].partition("\n\n")[0].splitlines()]


def shortened(command):
    """Returns a command that takes seconds."""
    command = re.sub(r"mpiexec( -f hosts)?( -n \d+)? ", f"{job.MPIEXEC} -n 2 " if job.MPIEXEC else "", command)
    training = re.search(rf"(?:^|[/ ])(?:{'|'.join(TRAINING)})'?(?: (\w+))?(?= |$)", command)
    if training and training[1] in (None, "train", "sweep"):
        command += " --steps 1"
    return command + (" --text" if re.match(r"\S*tools/monitor ", command) else "")


class Commands(job.JobTest):
    def setUp(self):
        super().setUp()
        home = self.folder / "home"
        (self.folder / "build").symlink_to(job.BUILD)
        for name in FOLDERS:
            (self.folder / name).symlink_to(ROOT / name)
        for i in range(40):
            image = job.png(job.SIDE, job.SIDE, bytes((7 * i + j // 99) % 256 for j in range(3 * job.SIDE**2)))
            for path in (home / "photos" / ("test" if i < 8 else "train") / ("cat", "dog")[i % 2] / f"{i}.png",
                         home / "new-photos" / f"{i}.png", self.folder / "photos" / f"{i}.png"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(image)
            job.write_png(self.folder / "masks" / f"{i}.png", 64, 64, bytes([i % 3]) * 4096, colour=0)
        (self.folder / "IMAGE.png").write_bytes(image)
        rows = [f"{i}.png,{i},{i % 2}\n" for i in range(40)]
        (self.folder / "photos" / "labels.csv").write_text("file,age,height\n" + "".join(rows))
        self.write_sample(100).rename(home / "data")
        (self.folder / "trials.csv").write_text("lr\n0.01\n")
        # Stands in for another machine, which has the same home folder.
        (home / "bin").mkdir()
        (home / "bin" / "ssh").write_text('#!/bin/sh\nshift\ncd && exec "$@"\n')
        (home / "bin" / "ssh").chmod(0o755)
        self.environment = {"HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
        for name in ("mnist", "digits"):
            self.succeed(job.program(1, "make_digits", home / name, "--per-class", 8))
        shutil.copytree(home / "digits", self.folder / "digits")
        (self.folder / "empty").mkdir()
        (self.folder / "empty" / "build").symlink_to(job.BUILD)
        self.train(1, "NAME", *job.TINY, "--validation", "0.2", "--epochs", "1")
        for net, options in (("resnet18", ["--stem", "imagenet"]), ("mobilenet_v2", [])):
            run = self.train(1, net, "--net", net, *options, "--steps", "0")
            shutil.copy(run / "model.safetensors", self.folder / f"{net}.pth")  # the bytes choose the reader

    def execute(self, command, folder="."):
        """Executes a command in a folder, and then those that it prints as the next ones. Returns its output."""
        with self.subTest(command=command, folder=folder):
            line = f"cd {shlex.quote(folder)} && {shortened(command)}"
            result = self.run_command(["sh", "-c", line], **self.environment)
            self.assertEqual(result.code, 0, result)
            for next_one in re.findall("^(?:next|watch): (.*)", result.out, re.MULTILINE):
                self.execute(next_one, folder)
            return result.out
        return ""

    def parse(self, command):
        """Checks the syntax of a command, and that its files of ours exist, and print their --help if they have one."""
        with self.subTest(command=command):
            self.succeed(["sh", "-n", "-c", command])
            for path in re.findall(r"(?<![\w/.])(?:tools|build)/[\w/.]+", command):
                self.assertTrue((self.folder / path).exists(), path)
                text = (self.folder / path).read_bytes()
                shell = {".sh": "sh", ".py": "python3"}.get(pathlib.Path(path).suffix, "")
                if b"--help" in text and b"exec mpiexec" not in text:
                    self.succeed(["sh", "-c", f"{shell} {path} --help"])

    def check(self, commands):
        for command in commands:
            is_parsed = any(re.search(pattern, command) for pattern in PARSED)
            self.parse(command) if is_parsed else self.execute(command)

    def test_documents(self):
        for document in documents():
            self.check(commands_in(document.read_text()))

    def test_helps_of_tools(self):
        for name in ("run.sh", "get_cifar10.sh", "gpu_check.sh", "bench/vs_pytorch.sh"):
            self.check(commands_in(self.succeed(["sh", f"tools/{name}", "--help"])))

    def test_plant_faults_needs_the_tests_of_a_build(self):
        self.refuse(["python3", "tools/plant_faults.py", "."], "plant_faults.py: expected tests/simt_tests in ",
                    "got none; run ninja -C ")

    def test_helps_of_programs(self):
        helps = [[name] for name in (*TRAINING, "predict", "export_onnx", "inspect", "make_digits")]
        helps += [["train_cifar", command] for command in COMMANDS] + [[name, "sweep"] for name in ("unet", "two_inputs")]
        for words in helps:
            out = self.execute(shlex.join([f"build/{words[0]}", *words[1:], "--help"]))
            self.assertEqual(len(examples_in(out)), 2, words)
            for example in examples_in(out):
                self.assertRegex(example, f"^(mpiexec -n 4 )?build/{words[0]} ")
                self.execute(example, "empty" if words[0] == "make_digits" else ".")

    def test_commands_of_a_program(self):
        for name in ("train_cifar", "own_network"):
            path = f"build/{name}"
            out = self.execute(f"{path} --help")
            self.assertEqual(self.execute(f"{path} help"), out)
            listed = re.findall(r"^  (\w+) ", out.partition("\nCommands\n")[2].partition("\n\n")[0], re.MULTILINE)
            self.assertEqual(listed, [*COMMANDS])
            for command in COMMANDS:
                self.assertEqual(self.execute(f"{path} help {command}"), self.execute(f"{path} {command} --help"))
        expected = "expected a command (train, predict, export, sweep, inspect or help)"
        self.refuse([path, "swep"], expected, 'got "swep"; did you mean sweep?')
        self.refuse([path, "cats"], expected, 'got "cats"')
        self.refuse([path, "help", "cats"], expected, 'got "cats"')
        self.refuse([path, ""], expected)
        for alias, command in (("predict", "predict"), ("export_onnx", "export"), ("inspect", "inspect")):
            def help_of(name):
                text = re.sub(rf"(^|Usage: |build/){name}\b", r"\1NAME", self.execute(f"build/{name} --help"))
                return text.split()  # the lines differ

            self.assertEqual(help_of(alias), help_of(f"train_cifar {command}"))

    def test_ways_to_start(self):
        programs = self.folder / "my programs"
        programs.mkdir()
        for name in ("train_cifar", "predict"):
            (programs / name).symlink_to(job.BUILD / name)
        (programs / "runs").symlink_to(self.runs)
        self.environment["PATH"] += f":{programs}"
        for folder, start in ((programs.name, "./train_cifar"), (".", "train_cifar"),
                              ("home", "'../my programs/train_cifar'"), (".", f"'{programs}/train_cifar'")):
            for command in ("", "inspect "):
                example = examples_in(self.execute(f"{start} {command}--help", folder))[0]
                self.assertIn(f"{start} {command}", example)
                self.execute(example, folder)

    def test_program_far_from_the_monitor(self):
        shutil.copy(job.BUILD / "own_network", self.folder / "home" / "bin")
        out = self.execute("own_network sweep --grid lr=0.01,0.02 --width 4")
        self.assertIn("\nresults: ", out)
        self.assertNotIn("watch:", out)

    def test_each_exception_is_needed(self):
        commands = [command for document in documents() for command in commands_in(document.read_text())]
        self.assertGreater(len(commands), 50)
        for pattern, reason in PARSED.items():
            self.assertTrue(any(re.search(pattern, command) for command in commands), reason)


job.main()
