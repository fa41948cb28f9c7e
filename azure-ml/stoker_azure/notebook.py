"""Notebooks as programs: the cells of a Jupyter notebook, run in order by this Python, without Jupyter."""

from __future__ import annotations

import ast
import json
import linecache
import re
import string
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

_LINE_MAGIC: Final = re.compile(r"\s*(?:[\w, ]+=\s*)?(?:%\w|!|\?)|.*\w\?{1,2}\s*$")
_OF_DISPLAY: Final = re.compile(r"\s*%(?:matplotlib|config|load_ext|reload_ext|autoreload|pylab)\b")
_OF_PACKAGES: Final = re.compile(
    r"\s*[%!]\s*(?:\S*python\S*\s+-m\s+)?(?:pip\d?|conda)\s+(?:install|list|show)\b"
)
_AROUND_CELL: Final = ("capture", "time", "timeit")
_WRITE: Final = "writefile"


class NotebookRefused(Exception):
    """A notebook cannot be run; the message says why, and what to do."""


class _Cell(Struct, frozen=True):
    """A cell of code.

    Attributes:
        code: Its text as Python, with lines for Jupyter left out.
        written_to: The file that it is written to instead of being run, as it stands there; empty for none.
        appends: Whether it is added to what that file has.
    """

    name: str
    source: str
    code: str
    written_to: str = ""
    appends: bool = False


def run_notebook(path: Path, variables: dict[str, Any]) -> None:
    """Run the cells of a notebook in order, and print the value of each cell's last line.

    Lines that set up the display or packages are left out, and a sentence on stderr says so.

    Raises:
        NotebookRefused: It is no notebook of Python, or has lines that only Jupyter runs. Nothing has been run.
    """
    cells = [_read_cell(path, number, source) for number, source in _sources(path)]
    variables.setdefault("display", _display)
    for cell in cells:
        _run_cell(cell, variables)


def _sources(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbers, from 1, and the texts of the cells of code."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        cells = document["cells"]
        language = document.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        if language != "python":
            raise NotebookRefused(f"{path} is a notebook of {language}; only those of Python are run")
        for number, cell in enumerate(cells, 1):
            if cell["cell_type"] == "code":
                yield number, "".join(cell["source"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NotebookRefused(
            f"{path} is no notebook of version 4: save it anew in Jupyter, or convert it (jupyter nbconvert --to "
            "script)"
        ) from None


def _read_cell(path: Path, number: int, source: str) -> _Cell:
    name = f"{path}, cell {number}"
    if source.lstrip().startswith("%%"):
        first, _, rest = source.lstrip().partition("\n")
        magic, *words = first[2:].split()
        if magic == _WRITE and words:
            return _Cell(name, source, "", words[-1], "-a" in words[:-1])
        if magic not in _AROUND_CELL:
            raise _refused(name, first)
        # The line stays, empty, so that numbers of lines are those of the cell.
        source = f"\n{rest}"
    return _Cell(name, source, _as_python(name, source))


def _as_python(name: str, source: str) -> str:
    """Remove the lines for Jupyter. Python reports other syntax errors when it runs the cell."""
    lines = source.splitlines()
    while True:
        text = "\n".join(lines)
        try:
            ast.parse(text)
        except SyntaxError as error:
            number = (error.lineno or 0) - 1
            if not (0 <= number < len(lines) and _LINE_MAGIC.match(lines[number])):
                return text
            line = lines[number]
            if not (_OF_DISPLAY.match(line) or _OF_PACKAGES.match(line)):
                raise _refused(name, line) from None
            sys.stderr.write(f"stoker.azure: {name}: {line.strip()} is left out\n")
            lines[number] = f"{line[: len(line) - len(line.lstrip())]}pass"
        else:
            return text


def _refused(name: str, line: str) -> NotebookRefused:
    return NotebookRefused(
        f"{name}: only Jupyter runs {line.strip()!r}: take it out, or run the notebook in Jupyter with 'import "
        "stoker.azure' in its first cell"
    )


def _run_cell(cell: _Cell, variables: dict[str, Any]) -> None:
    if cell.written_to:
        _write_cell(cell, variables)
        return
    # Tracebacks look the lines up.
    lines = cell.source.splitlines(keepends=True)
    linecache.cache[cell.name] = (len(cell.source), None, lines, cell.name)
    body = ast.parse(cell.code, cell.name).body
    last: list[ast.stmt] = []
    if body and isinstance(body[-1], ast.Expr) and not cell.code.rstrip().endswith(";"):
        last = [body.pop()]
    # A notebook is a program that its user wants to be run, as a script is.
    exec(compile(ast.Module(body, []), cell.name, "exec"), variables)  # noqa: S102
    exec(compile(ast.Interactive(last), cell.name, "single"), variables)  # noqa: S102


def _write_cell(cell: _Cell, variables: Mapping[str, Any]) -> None:
    """Do what `%%writefile` does; `$name` and `{name}` in its path are variables."""
    place = re.sub(r"\{(\w+)\}", r"${\1}", cell.written_to.strip("\"'"))
    file = Path(string.Template(place).safe_substitute(variables))
    _, _, text = cell.source.lstrip().partition("\n")
    with file.open("a" if cell.appends else "w", encoding="utf-8") as written:
        written.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.write(f"Writing {file}\n")


def _display(*values: object) -> None:
    for value in values:
        sys.stdout.write(f"{value!r}\n")
