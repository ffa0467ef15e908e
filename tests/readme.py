# Checks the READMEs: the program in the top one is models/example.cpp and learns; links lead to files; lines fit.
#
#     python3 tests/readme.py TOP_FOLDER EXAMPLE
import pathlib
import re
import subprocess
import sys

MAX_LINES = {"README.md": 170}  # all others: 60
top, example = pathlib.Path(sys.argv[1]), sys.argv[2]
errors = []

code = (top / "models" / "example.cpp").read_text()
if f"```cpp\n{code}```\n" not in (top / "README.md").read_text():
    errors.append("README.md: expected models/example.cpp between ```cpp and ```, got another program; copy the file")

readmes = [top / "README.md", *sorted(top.glob("[a-z]*/README.md")), *sorted(top.glob("models/*/README.md"))]
for readme in [path for path in readmes if not path.parent.name.startswith("build")]:
    name, text = str(readme.relative_to(top)), readme.read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        if not (readme.parent / link).exists():
            errors.append(f"{name}: expected a file or folder, got a link to {link}, which does not exist")
    lines, most = text.count("\n"), MAX_LINES.get(name, 60)
    if lines > most:
        errors.append(f"{name}: expected at most {most} lines, got {lines}")

result = subprocess.run([example], capture_output=True, text=True, timeout=60)
accuracies = [float(value) for value in re.findall(r"test accuracy ([\d.]+) %", result.stdout)]
if result.returncode or len(accuracies) != 5 or accuracies[-1] < 25:  # 10 % is chance
    errors.append(f"example: expected 5 epochs and 25 % or more, got {result.stdout}{result.stderr}")

print("\n".join(errors) or f"{len(readmes)} READMEs: the program is that of models/example.cpp, and every link leads on")
sys.exit(bool(errors))
