# Checks the documents: code is part of a file that the build compiles; links lead to files; the length of READMEs.
#
#     python3 tests/readme.py TOP_FOLDER
import pathlib
import re
import sys

MAX_LINES = {"README.md": 300, "core/README.md": 100, "data/README.md": 90, "models/README.md": 95,
             "models/examples/README.md": 200, "tools/bench/README.md": 95}  # all others: 60
top = pathlib.Path(sys.argv[1])
programs = [path.read_text() for folder in ("models", "models/examples") for path in (top / folder).iterdir()
            if path.suffix in (".cpp", ".h", ".c")]
errors = []

documents = sorted(top.glob("*.md"))
for folder in ("core", "data", "gpu", "models", "par", "tests", "tools"):
    documents += sorted((top / folder).rglob("*.md"))
for document in documents:
    name, text = str(document.relative_to(top)), document.read_text()
    for code in re.findall(r"```cpp\n(.*?)```", text, re.DOTALL):
        if not any(code in program for program in programs):
            errors.append(f"{name}: expected lines of a file in models/ or models/examples/ between ```cpp and ```, got "
                          f"others, which begin with {code.splitlines()[0]!r}; copy them from the file")
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if not (document.parent / link).exists():
            errors.append(f"{name}: expected a file or folder, got a link to {link}, which does not exist")
    lines, most = text.count("\n"), MAX_LINES.get(name, 60)
    if document.name == "README.md" and lines > most:
        errors.append(f"{name}: expected at most {most} lines, got {lines}")

print("\n".join(errors) or f"{len(documents)} documents: their code is that of models/, and every link leads on")
sys.exit(bool(errors))
