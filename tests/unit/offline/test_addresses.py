"""Rows and answers at addresses."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tests.tiny_models import write_doubler

from stoker.cli import main

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A folder with three files of rows, the last of which does not fit the model."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in "ab":
        np.save(folder / f"{name}.npy", ROWS)
    np.save(folder / "c.npy", ROWS[:, :3])
    return folder


def score(tmp_path: Path, machine: str, rows: Path, *more: str) -> int:
    """Score from an address to an address on one of several machines; returns the exit code."""
    model = tmp_path / "net.onnx"
    if not model.exists():
        write_doubler(model)
    words = [str(model), "--input", rows.as_uri(), "--output", f"{(tmp_path / 'answers').as_uri()}/"]
    return main(["offline", *words, "--workspace", str(tmp_path / machine), *more])


def test_another_machine_goes_on(tmp_path: Path, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each file is sent when it is scored; scored ones are skipped, with any times of their copies."""
    answers = tmp_path / "answers"
    assert score(tmp_path, "one", rows) == 1
    assert {path.name for path in answers.glob("*.npy")} == {"a.npy", "b.npy"}
    np.save(rows / "c.npy", ROWS)
    os.utime(rows / "a.npy", (1, 1))
    (answers / "a.npy").unlink()
    capsys.readouterr()
    assert score(tmp_path, "two", rows) == 0
    printed = capsys.readouterr().out
    assert printed == f"2 files with 4 rows in {answers.as_uri()}, 1 done before\n"
    for name in "abc":
        np.testing.assert_array_equal(np.load(answers / f"{name}.npy"), 2 * ROWS)
    assert json.loads((answers / "_done" / "c.json").read_bytes())["scored"] == 2
    assert list((tmp_path / "two").glob(".answers-*")) == []
    np.save(rows / "b.npy", ROWS + 1)
    assert score(tmp_path, "two", rows) == 2
    assert "answers for b already, with another source" in capsys.readouterr().err
