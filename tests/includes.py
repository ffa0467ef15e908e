# Checks #include lines: dependencies between folders point one way, and no two files need each other.
#
#     python3 tests/includes.py TOP_FOLDER
import collections
import pathlib
import re
import sys

# Lists the folders that each folder may include. The host half of gpu/ is compiled for the executor in tests/simt.
ALLOWED = {
    "core": set(),
    "data": {"core"},
    "gpu": {"core", "tests/simt"},
    "par": {"core"},
    "models/nets": {"core"},
    "models/run": {"core", "data", "gpu", "par", "models/nets"},
    "models/sweep": {"core", "data", "par", "models/nets", "models/run"},
    "models": {"core", "data", "gpu", "par", "models/nets", "models/run", "models/sweep"},
    "tests/simt": {"core", "gpu"},
}
SUFFIXES = (".h", ".cpp", ".cuh", ".cu")


def folder_of(path):
    for parent in path.parents:
        if str(parent) in ALLOWED:
            return str(parent)
    return None


def cycles(graph):
    """The sets of nodes that reach each other (Tarjan, 1972)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            place = stack.index(node)
            if len(stack) - place > 1:
                found.append(sorted(stack[place:]))
            del stack[place:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def main():
    top = pathlib.Path(sys.argv[1])
    files = {path.relative_to(top) for folder in ("core", "data", "gpu", "par", "models", "tests/simt")
             for path in (top / folder).rglob("*") if path.suffix in SUFFIXES}
    errors, graph = [], collections.defaultdict(set)
    for file in sorted(files):
        for line in re.findall(r'^#include "([^"]+)"', (top / file).read_text(), re.MULTILINE):
            other = pathlib.Path(line)
            if other not in files:
                continue
            own, needed = folder_of(file), folder_of(other)
            if needed != own and needed not in ALLOWED[own]:
                errors.append(f"{file}: expected includes of {own} and {sorted(ALLOWED[own])}, got {other}")
            if file.with_suffix("") != other.with_suffix(""):
                graph[str(file.with_suffix(""))].add(str(other.with_suffix("")))
    errors += [f"expected files that do not need each other, got {', '.join(cycle)}" for cycle in cycles(graph)]
    print("\n".join(errors) or f"{len(files)} files: no cycles, and no include against the direction of the folders")
    sys.exit(bool(errors))


main()
