# Writes API.md, an index of the installed headers, or with --check compares it.
#
#     python3 tests/api.py [--check] TOP_FOLDER
#
# A line per function and class of a header: its name, and the first sentence of its comment. clang-format lets the
# declarations of a namespace begin in the first column, and nothing else that is public.
import pathlib
import re
import sys

TITLE = """# API

All functions and classes of the headers that an installation has in `include/ringgrad/`, with their namespaces.
`python3 tests/api.py .` writes this file. Programs include a header as `#include "ringgrad/core/tensor.h"`.
"""
top = pathlib.Path(sys.argv[-1])


def installed_headers():
    """Returns the headers in install_headers() of the files meson.build."""
    for folder in ("core", "data", "gpu", "models", "par"):
        for call in re.findall(r"install_headers\((.*?)\)", (top / folder / "meson.build").read_text(), re.DOTALL):
            yield from (top / folder / name for name in re.findall(r"'([^']+\.h)'", call))


def sentence(comment):
    """Returns the first sentence of a comment's lines."""
    paragraph = " ".join(line.lstrip("/ ") for line in comment).partition(" //")[0]
    found = re.match(r"(.+?[.!?])(?=\s|$)", paragraph)
    return (found[1] if found else paragraph).strip()


def name_of(declaration):
    """Returns the name of a declared class or function, or "" if it declares neither."""
    text = re.sub(r"\[\[.*?\]\]|\b(inline|constexpr|static|extern|friend)\b", "", declaration)
    while "<" in text and (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    text = re.sub(r"^\s*template\s*", "", text)
    if found := re.match(r"\s*(class|struct|enum class|enum|union)\s+(?:alignas\(\w+\)\s+)?(\w+)(.*)", text):
        return f"{found[1].split()[0]} {found[2]}" if "{" in found[3] or ":" in found[3] else ""
    found = re.match(r"[^=(]*?[\w&*>:]\s+[&*]*((?:\w+::)*(?:operator\s*\S+?|\w+))\s*\(", text)
    return found[1] + "()" if found and "::" not in found[1] else ""


def entries(header):
    """Returns the names of a header in their order, each with the sentence that its comment begins with."""
    found, comment, declaration, spaces = {}, [], "", []
    for line in header.read_text().splitlines():
        if line.startswith("namespace"):
            spaces.append(line.split()[1] + "::")
        elif line.startswith("} // namespace"):
            spaces.pop()
        if line.startswith("///"):
            comment.append(line)
            continue
        skipped = line.startswith(("namespace", "using", "public", "private"))
        if declaration or (line and line[0] not in " #}/" and not skipped):
            declaration += " " + line.partition(" //")[0]
            if not re.search(r"[;{]", declaration):
                continue
            if name := name_of(declaration):
                kind, _, name = name.rpartition(" ")
                name = f"{kind} {''.join(spaces)}{name}".lstrip()
                found[name] = found.get(name) or sentence(comment)
            declaration = ""
        comment = [] if not line.startswith("template") else comment
    if spaces:
        sys.exit(f"{header}: expected '}} // namespace' at the end of each namespace; format it with clang-format")
    return found


text = TITLE
for header in sorted(installed_headers()):
    lines = header.read_text().splitlines()
    about = lines[:next(i for i, line in enumerate(lines) if not line.startswith("//"))]
    path = str(header.relative_to(top))
    names = "".join(f"- `{name}`{': ' if note else ''}{note}\n" for name, note in entries(header).items())
    text += f"\n## [{path}]({path})\n\n{sentence(about)}\n" + (f"\n{names}" if names else "")
index = top / "API.md"
if "--check" not in sys.argv:
    index.write_text(text)
elif not index.exists() or index.read_text() != text:
    sys.exit("API.md: expected the functions and classes of the headers, got others; run: python3 tests/api.py .")
