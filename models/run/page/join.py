"""Joins page.html and the style and scripts that it names into one page.

As a program, this file writes the page as a C++ string literal to the file named by its argument. tools/monitor calls
template().
"""
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent


def template():
    def content(match):
        return (FOLDER / match[1]).read_text()

    page = (FOLDER / "page.html").read_text()
    page = re.sub(r'<link rel="stylesheet" href="(.*?)">', lambda m: f"<style>\n{content(m)}</style>", page)
    return re.sub(r'<script src="(.*?)"></script>', lambda m: f"<script>\n{content(m)}</script>", page)


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(f'R"report({template()})report"')
