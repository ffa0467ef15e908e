# Checks the READMEs: the top one shows the examples as they are; links lead to files; the number of lines.
#
#     python3 tests/readme.py TOP_FOLDER
import pathlib
import re
import sys

MAX_LINES = {"README.md": 275, "core/README.md": 80, "data/README.md": 85}  # all others: 60
top = pathlib.Path(sys.argv[1])
errors = []

for name in ("mlp.cpp", "own_network.h"):
    code = (top / "models" / "examples" / name).read_text()
    if f"```cpp\n{code}```\n" not in (top / "README.md").read_text():
        errors.append(f"README.md: expected {name} between ```cpp and ```, got another text; copy the file")

readmes = [top / "README.md", *sorted(top.glob("[a-z]*/README.md")), *sorted(top.glob("models/*/README.md"))]
for readme in [path for path in readmes if not path.parent.name.startswith("build")]:
    name, text = str(readme.relative_to(top)), readme.read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if not (readme.parent / link).exists():
            errors.append(f"{name}: expected a file or folder, got a link to {link}, which does not exist")
    lines, most = text.count("\n"), MAX_LINES.get(name, 60)
    if lines > most:
        errors.append(f"{name}: expected at most {most} lines, got {lines}")

print("\n".join(errors) or f"{len(readmes)} READMEs: the examples are those of models/examples, and every link leads on")
sys.exit(bool(errors))
