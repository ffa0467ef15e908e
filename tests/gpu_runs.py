"""Checks that gpu/README.md lists the kernel files that no GPU has run in their present form.

usage: gpu_runs.py SOURCE_FOLDER

These are the .cu and .cuh files whose code differs from that of the commit that added the newest figures of a GPU to
tools/bench/results. Comments and spaces do not count. Skipped without the history: in a tarball or a shallow clone.
"""
import fnmatch
import pathlib
import re
import subprocess
import sys

source = pathlib.Path(sys.argv[1]).resolve()


def git(*arguments):
    """Returns the output of a git command, or "" if it fails."""
    try:
        return subprocess.run(["git", "-C", str(source), *arguments], capture_output=True, text=True).stdout
    except OSError:
        return ""


def code(text):
    return re.sub(r"\s", "", re.sub(r"//.*", "", text))


if (pathlib.Path(git("rev-parse", "--show-toplevel").strip()) != source
        or git("rev-parse", "--is-shallow-repository").strip() != "false"):
    print("skipped: no history of git")
    sys.exit(77)
figures = git("log", "-1", "--diff-filter=A", "--format=%H", "--", "tools/bench/results/*-gpu*.md",
              ":!*-gpu-cost.md").strip()
changed = {path.stem for path in source.glob("gpu/*.cu*")
           if code(path.read_text()) != code(git("show", f"{figures}:gpu/{path.name}"))}
patterns = re.findall(r"`([\w*]+)`", (source / "gpu/README.md").read_text().partition("Only the executor")[2])
stems = {path.stem for path in source.glob("gpu/*.cu*")}
listed = {name for p in patterns for name in fnmatch.filter(stems, p) or [p]}
for names, problem in ((changed - listed, "to list"), (listed - changed, "not to list")):
    if names:
        sys.exit(f"gpu/README.md: expected {problem} among the files that no GPU has run since {figures[:8]}: "
                 f"{' '.join(sorted(names))}")
print(f"{len(changed)} files changed since {figures[:8]}, all listed")
