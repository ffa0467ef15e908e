#!/usr/bin/env python3
# Lets programs include "ringgrad/core/tensor.h" where files of this tree include "core/tensor.h", a name that a program
# may give to a header of its own. Meson calls it:
#
#     headers.py copy TOP_FOLDER FOLDER STAMP    copies all headers to FOLDER/ringgrad, for a parent project
#     headers.py install DOCUMENTS INCLUDE       changes installed files, in these folders below the prefix
import os
import pathlib
import re
import sys
import zlib


def with_prefix(text, folder):
    """Returns the text of a file, with "ringgrad/" before each included header that `folder` has."""
    return re.sub(r'(?m)^#include "(\w+/[^"]+)"',
                  lambda line: f'#include "ringgrad/{line[1]}"' if (folder / line[1]).exists() else line[0], text)


def write_changed(path, text):
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def copy(top, folder, stamp):
    """Copies the headers that have changed. Each copy includes the stamp, a file with a checksum of all headers. Ninja
    knows that this command writes the stamp. So after a change of a header, it compiles the parent's files again."""
    copies = {folder / "ringgrad" / path.relative_to(top): with_prefix(path.read_text(), top)
              for name in ("core", "data", "gpu", "models", "par") for path in sorted((top / name).rglob("*.h"))}
    for path, text in copies.items():
        write_changed(path, f'#include "{os.path.relpath(stamp, path.parent)}"\n#line 1\n{text}')
    write_changed(stamp, f"// {zlib.crc32(''.join(copies.values()).encode()):08x}\n")


def install(documents, include):
    for path in [*(include / "ringgrad").rglob("*.h"), *documents.rglob("*.cpp")]:
        write_changed(path, with_prefix(path.read_text(), include / "ringgrad"))
    for document in documents.rglob("*.md"):
        def to_header(link):
            if (document.parent / link[1]).exists():
                return link[0]
            name = os.path.relpath(document.parent / link[1], documents)
            header = include / ("ringgrad.h" if name == "models/bindings/ringgrad.h" else f"ringgrad/{name}")
            return f"]({os.path.relpath(header, document.parent)})"

        document.write_text(re.sub(r"\]\(([^):]+\.h)\)", to_header, document.read_text()))


if sys.argv[1] == "copy":
    copy(*map(pathlib.Path, sys.argv[2:]))
else:
    prefix = pathlib.Path(os.environ["MESON_INSTALL_DESTDIR_PREFIX"])
    install(prefix / sys.argv[2], prefix / sys.argv[3])
