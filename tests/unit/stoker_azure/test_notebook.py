"""Notebooks that `python -m stoker.azure` runs."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PROGRAM_S

from stoker_azure.notebook import NotebookRefused, run_notebook


def notebook(folder: Path, *cells: str, **metadata: Any) -> Path:
    """Write a notebook of these cells of code below a title."""
    written = [{"cell_type": "markdown", "source": ["# Title\n"]}]
    written += [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    path = folder / "a.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "metadata": metadata, "cells": written}))
    return path


def test_cells_run_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They share their variables; the value of a last line is shown, unless it is None or ends in a semicolon."""
    path = notebook(
        tmp_path, "a = null = 1", "a += 1\na", "a;", "display('b')", "%%time\nif a:\n    a * 2", ""
    )
    variables: dict[str, Any] = {}
    run_notebook(path, variables)
    assert capsys.readouterr() == ("2\n'b'\n", "")
    assert variables["null"] == 1


def test_lines_for_the_display_and_packages_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentence says so of each; what looks like one inside a text is Python's."""
    path = notebook(
        tmp_path,
        "%matplotlib inline\nif True:\n    !pip install azureml-sdk\n    text = '''\n%matplotlib inline\n'''",
        "print(7\n% 4, text)",
    )
    run_notebook(path, {})
    assert capsys.readouterr() == (
        "3 \n%matplotlib inline\n\n",
        f"stoker.azure: {path}, cell 2: %matplotlib inline is left out\n"
        f"stoker.azure: {path}, cell 2: !pip install azureml-sdk is left out\n",
    )


def test_cells_become_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`%%writefile` writes the script that is submitted, to a path with variables in it."""
    monkeypatch.chdir(tmp_path)
    cells = (
        "folder = '.'",
        "%%writefile $folder/train.py\n%odd\nprint(1)",
        "%%writefile -a '{folder}/train.py'\n2",
    )
    run_notebook(notebook(tmp_path, *cells), {})
    assert (tmp_path / "train.py").read_text() == "%odd\nprint(1)\n2\n"


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("!wget data", "!wget data"),
        ("files = !ls", "files = !ls"),
        ("%run other.py", "%run other.py"),
        ("1\nWorkspace?", "Workspace?"),
        ("%%bash\nls", "%%bash"),
        ("%%writefile\nx", "%%writefile"),
    ],
)
def test_notebook_with_a_jupyter_command_is_refused(tmp_path: Path, cell: str, line: str) -> None:
    """The error names the cell, the line and what to do, before anything is run."""
    path = notebook(tmp_path, "raise AssertionError", cell)
    with pytest.raises(NotebookRefused) as refused:
        run_notebook(path, {})
    assert str(refused.value) == (
        f"{path}, cell 3: only Jupyter runs {line!r}: take it out, or run the notebook in Jupyter with 'import "
        "stoker.azure' in its first cell"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("print(1)", "is no notebook of version 4"),
        ('{"worksheets": []}', "is no notebook of version 4"),
        ('{"cells": [1]}', "is no notebook of version 4"),
        ('{"cells": [], "metadata": {"kernelspec": {"language": "R"}}}', "is a notebook of R"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    """They are older notebooks, those of other languages, and other files."""
    path = tmp_path / "a.ipynb"
    path.write_text(text)
    with pytest.raises(NotebookRefused, match=words):
        run_notebook(path, {})


@pytest.mark.parametrize("cell", ["ok = 1\n1 / 0", "ok = = 1"])
def test_a_mistake_is_shown_with_its_line(tmp_path: Path, cell: str) -> None:
    """Tracebacks name the cell and show the line, of what Python cannot read as well."""
    path = notebook(tmp_path, cell)
    try:
        run_notebook(path, {})
    except (ZeroDivisionError, SyntaxError):
        report = traceback.format_exc()
    assert f'File "{path}, cell 2", line {cell.count(chr(10)) + 1}' in report
    assert f"    {cell.splitlines()[-1]}\n" in report


def test_the_command_runs_notebooks(tmp_path: Path) -> None:
    """As the main module, with Azure's imports; one that is refused is a sentence and exit code 2."""
    path = notebook(
        tmp_path,
        "import pickle\nclass A: pass\nfrom azureml.core import Workspace",
        "pickle.dumps(A()) != b''",
    )
    command = [sys.executable, "-m", "stoker.azure", path.name]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    notebook(tmp_path, "%%bash")
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM_S, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("python -m stoker.azure: a.ipynb, cell 2: only Jupyter runs '%%bash'")
