"""Checks which GPUs the builds compile for, with an nvidia-smi and a folder of device files that are made up.

usage: gpus.py SOURCE_FOLDER
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1])


def run(folder, *command):
    """Runs a command that finds the nvidia-smi of this folder first."""
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(command, cwd=source, text=True, capture_output=True, env={**os.environ, "PATH": path})


def check(what, got, expected):
    if got != expected:
        sys.exit(f"{what}: expected {expected!r}, got {got!r}")
    print("ok:", what)


def has_cuda(folder, *options):
    """Returns the line of Meson's summary about CUDA for a new build folder."""
    with tempfile.TemporaryDirectory() as build:
        setup = run(folder, "meson", "setup", "-Dtests=disabled", *options, build, str(source))
        lines = [line.split(":")[1].strip() for line in setup.stdout.splitlines() if line.strip().startswith("CUDA  ")]
        return lines[0] if lines else setup.stdout + setup.stderr


with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    devices = folder / "dev"
    devices.mkdir()
    smi = folder / "nvidia-smi"

    def answers(script):
        smi.write_text(f"#!/bin/sh\n{script}\n")
        smi.chmod(0o755)

    def found():
        done = run(folder, "sh", "tools/gpus.sh", str(devices))
        return done.returncode, done.stdout.split()

    def too_old():
        return run(folder, "sh", "tools/gpus.sh", str(devices)).stderr.split(":")[0]

    def option():
        done = run(folder, "sh", "-c", f". tools/deps.sh; without_cuda_if_no_gpu '{devices}'")
        return done.stdout.strip(), "leaves CUDA out" in done.stderr and "-Dcuda=auto" in done.stderr

    answers("exit 9")  # what it does without a driver
    check("no driver and no device file", found(), (1, []))
    check("then the scripts leave CUDA out, and say how to turn it on", option(), ("-Dcuda=disabled", True))
    (devices / "nvidiactl").touch()
    check("the driver's control file is no GPU", found(), (1, []))
    (devices / "nvidia0").touch()
    check("a device file, and no answer", found(), (0, []))
    check("then the scripts ask for CUDA", option(), ("", False))
    (devices / "nvidia0").unlink()
    answers("printf '9.0\\n9.0\\n8.6\\n'")
    check("two kinds of GPUs", found(), (0, ["sm_86", "sm_90a"]))
    check("then, too, the scripts ask for CUDA", option(), ("", False))
    answers("printf '7.5\\n8.6\\n'")
    check("a GPU that is too old, beside another", (found(), too_old()), ((0, ["sm_86"]), "sm_75"))
    answers("echo 7.5")
    check("only a GPU that is too old", (found(), too_old()), ((1, []), "sm_75"))
    check("then the scripts leave CUDA out", option(), ("-Dcuda=disabled", True))
    answers("printf '10.0\\n12.0\\n'")
    check("GPUs whose number has three digits", found(), (0, ["sm_100", "sm_120"]))
    answers("echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'")
    check("an error on standard output", found(), (1, []))

    if not shutil.which("meson"):
        print("skipped: no meson, so no test of a build folder's configuration")
    elif has_cuda(folder) == "no":
        print("skipped: no CUDA Toolkit, so no test of a build folder's configuration")
    else:
        # An nvcc that knows few targets, and otherwise does what the real one does.
        nvcc = folder / "nvcc"
        nvcc.write_text(f"""#!/bin/sh
case "$*" in *code=sm_100* | *code=sm_12*) exit 1 ;; esac
exec {shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"} "$@"
""")
        nvcc.chmod(0o755)
        check("Meson without GPUs", has_cuda(folder), "sm_80, sm_90a, compute_90")
        answers("echo 8.6")
        check("Meson with a GPU", has_cuda(folder), "sm_86")
        answers("printf '9.0\\n12.0\\n7.5\\n'")
        check("Meson with GPUs that are newer than nvcc, or too old", has_cuda(folder), "compute_90, sm_90a")
        check("Meson with an option", has_cuda(folder, "-Dgpu_arch=sm_90"), "sm_90a")
        check("Meson with an option that nvcc refuses", has_cuda(folder, "-Dgpu_arch=sm_120"), "no")
