# Checks that the library calls no function whose result depends on the program's locale; see core/formatted.h.
#
#     python3 tests/locales.py TOP_FOLDER
import pathlib
import re
import sys

FOLDERS = ("core", "data", "gpu", "par", "models")
EXCEPT = {"core/formatted.cpp",
          # programs that print for people
          "models/examples/mlp.cpp", "models/examples/futures.cpp", "models/examples/accelerated.cpp"}
CALLS = (r"strto[a-z]+", r"ato[fil]+", r"sto[dfilu]+", r"v?[fs]?scanf", r"v?sn?printf", r"setlocale", r"localeconv",
         r"is(?:alnum|alpha|digit|lower|print|punct|space|upper)", r"to(?:lower|upper)", r"strcoll", r"wcwidth")
DEPENDS = re.compile(rf"\b(?:(?:{'|'.join(CALLS)})(?= *\()|[io]?stringstream\b|f?printf *\([^;]*?%[-+ #0-9.*]*[aefgAEFG])")


def main():
    top = pathlib.Path(sys.argv[1])
    files = [path for folder in FOLDERS for path in sorted((top / folder).rglob("*"))
             if path.suffix in (".h", ".cpp", ".cuh", ".cu") and str(path.relative_to(top)) not in EXCEPT]
    errors = []
    for path in files:
        text = re.sub(r"//.*", "", path.read_text())
        for match in DEPENDS.finditer(text):
            errors.append(f"{path.relative_to(top)}, line {text.count(chr(10), 0, match.start()) + 1}: expected "
                          f"formatted(), cat(), read_number() or std::from_chars(), got {match[0].split('(')[0]}")
    print("\n".join(errors) or f"{len(files)} files: nothing depends on the locale")
    sys.exit(bool(errors))


main()
