# Checks #include lines: dependencies between folders point one way, and no two files need each other. Files name each
# other by their path from the top folder; examples, which users copy, name the installed header.
#
#     python3 tests/includes.py TOP_FOLDER
import collections
import pathlib
import re
import sys

# Checks the tests of these folders too: those in tests/core may include files of core and of tests/ only, and so on.
TESTED = ("core", "par")

# Lists the folders that each folder may include. The top folders among them are rooms, and each dependency of a room on
# another is an arrow, which some file must have. The host half of gpu/ is compiled for the executor in tests/simt.
ALLOWED = {
    "core": set(),
    "data": {"core"},
    "gpu": {"core", "tests/simt"},
    "par": {"core"},
    "models/nets": {"core"},
    "models/bindings": {"core", "data", "models/run"},
    "models/run": {"core", "data", "gpu", "par", "models/nets"},
    "models/sweep": {"core", "data", "par", "models/nets", "models/run"},
    "models": {"core", "data", "gpu", "par", "models/nets", "models/run", "models/sweep"},
    "tests/simt": {"core", "gpu"},
    "tools": {"core", "data", "gpu", "par", "models/nets", "models/run"},
}
ROOMS = {folder for folder in ALLOWED if "/" not in folder}
SUFFIXES = (".h", ".cpp", ".cuh", ".cu")


def folder_of(path):
    """Returns the folder of ALLOWED that a file belongs to, or that a test tests; None if there is none."""
    for folder in TESTED:
        if path.match(f"tests/{folder}/*.cpp"):
            return folder
    for parent in path.parents:
        if str(parent) in ALLOWED:
            return str(parent)
    return None


def cycles(graph):
    """Returns the sets of nodes that reach each other (Tarjan, 1972)."""
    index, low, stack, components = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            position = stack.index(node)
            if len(stack) - position > 1:
                components.append(sorted(stack[position:]))
            del stack[position:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return components


def main():
    top = pathlib.Path(sys.argv[1])
    files = {path.relative_to(top) for folder in (*ROOMS, "tests") for path in (top / folder).rglob("*")
             if path.suffix in SUFFIXES}
    errors, graph, arrows = [], collections.defaultdict(set), collections.defaultdict(set)
    for file in sorted(files):
        prefix = "ringgrad/" if file.match("models/examples/*") else ""
        for line in re.findall(r'^#include "([^"]+)"', (top / file).read_text(), re.MULTILINE):
            other = pathlib.Path(line.removeprefix("ringgrad/"))
            if other not in files:
                continue
            if line != f"{prefix}{other}":
                errors.append(f'{file}: expected #include "{prefix}{other}", got "{line}"; change its name')
            folder, included = folder_of(file), folder_of(other)
            if not folder or not included:
                continue
            if included != folder and included not in ALLOWED[folder]:
                errors.append(f"{file}: expected includes of {', '.join([folder, *sorted(ALLOWED[folder])])}, "
                              f"got {other}; move the code to the folder that needs it")
            if file.with_suffix("") != other.with_suffix(""):
                graph[str(file.with_suffix(""))].add(str(other.with_suffix("")))
            if file.parts[0] != other.parts[0] and {file.parts[0], other.parts[0]} <= ROOMS:
                arrows[file.parts[0]].add(other.parts[0])
    errors += [f"expected includes without a cycle, got {', '.join(cycle)}; move the shared code to its own file"
               for cycle in cycles(graph) + cycles(arrows)]
    for folder, others in ALLOWED.items():
        room = folder.split("/")[0]
        unused = {other.split("/")[0] for other in others} & ROOMS - {room} - arrows[room]
        if room in ROOMS and unused:
            errors.append(f"tests/includes.py: expected a file of {room} that includes {', '.join(sorted(unused))}, "
                          "got none; change ALLOWED")
    print("\n".join(errors) or f"{len(files)} files, {len(ROOMS)} rooms, {sum(map(len, arrows.values()))} arrows: "
          "no cycles, and no include against the direction of the folders")
    sys.exit(bool(errors))


main()
