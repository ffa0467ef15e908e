#!/usr/bin/env python3
"""Lets links to headers in the installed documents lead to the installed headers. `meson install` calls it with the
folders of documents and of headers, relative to the prefix."""
import os
import pathlib
import re
import sys

prefix = pathlib.Path(os.environ["MESON_INSTALL_DESTDIR_PREFIX"])
documents, include = prefix / sys.argv[1], prefix / sys.argv[2]
for document in documents.rglob("*.md"):
    def to_header(link):
        if (document.parent / link[1]).exists():
            return link[0]
        name = os.path.relpath(document.parent / link[1], documents)
        header = include / ("ringgrad.h" if name == "models/bindings/ringgrad.h" else f"ringgrad/{name}")
        return f"]({os.path.relpath(header, document.parent)})"

    document.write_text(re.sub(r"\]\(([^):]+\.h)\)", to_header, document.read_text()))
