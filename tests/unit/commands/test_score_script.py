"""`stoker score --script`: scripts with `run(mini_batch)` over files, and over the rows of tables."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stoker.cli import main
from stoker.scripts.mini_batch import lines_of
from stoker_azure import aml_request

Score = Callable[..., int]
NAMES = """
import os
def init(): print("the script prints")
def run(mini_batch):
    return [f"{os.path.basename(file)}: {len(mini_batch)}" for file in mini_batch]
"""


@pytest.fixture
def score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Score]:
    """Run the command with a script of this text; what that does to the process is undone afterwards."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["stoker"])
    monkeypatch.setattr(logging, "basicConfig", lambda **settings: None)
    monkeypatch.setattr(aml_request, "_rawHttpRequested", False)
    monkeypatch.chdir(tmp_path)
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(str(number))

    def score(script: str, *arguments: str) -> int:
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "code" / "batch_driver.py").write_text(script)
        return main(["score", "--script", "code/batch_driver.py", *arguments])

    yield score
    sys.modules.pop("entry_module", None)


FILES = ("0.txt", "1.txt", "2.txt", "3.txt", "4.txt")


def test_files_come_in_mini_batches(score: Score, capsys: pytest.CaptureFixture[str]) -> None:
    """Each call has the set number of paths, the last one the rest; the script's output is apart."""
    assert score(NAMES, "--mini-batch-size", "2", *FILES) == 0
    output, errors = capsys.readouterr()
    assert output.splitlines() == ["0.txt: 2", "1.txt: 2", "2.txt: 2", "3.txt: 2", "4.txt: 1"]
    assert "the script prints" in errors


def test_a_script_is_in_its_folder(score: Score, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It finds its model, the modules beside it, its arguments, and its files by whole paths."""
    (tmp_path / "weights").mkdir()
    script = """
import argparse, os
from azureml_user.parallel_run import EntryScript
import helper
def init():
    global label
    parser = argparse.ArgumentParser()
    parser.add_argument("--label")
    label = parser.parse_known_args()[0].label
    EntryScript().logger.info("ready")
def run(mini_batch):
    root = os.path.basename(os.environ["AZUREML_MODEL_DIR"])
    here = os.path.basename(EntryScript().working_dir)
    return [(label, root, here, helper.read(path)) for path in mini_batch]
"""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "helper.py").write_text(
        "import pathlib\ndef read(path): return pathlib.Path(path).read_text()\n"
    )
    given = (
        "--model-dir",
        "weights",
        "--script-arguments",
        "--label 'a b'",
        "--output",
        "out/predictions.csv",
    )
    (tmp_path / "out").mkdir()
    assert score(script, *given, "3.txt") == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out" / "predictions.csv").read_text() == "('a b', 'weights', 'code', '3')\n"
    sys.modules.pop("helper")


def test_folders_stand_for_their_files(
    score: Score, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All files below are meant, by name, but for hidden ones."""
    for name in ("b/2.txt", "b/deep/3.txt", "b/.hidden", "b/.git/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert score(NAMES, "1.txt", "b") == 0
    assert [line[:5] for line in capsys.readouterr().out.splitlines()] == ["1.txt", "2.txt", "3.txt"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_come_as_data_frames(
    score: Score, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    """`run` gets so many rows of one file, and the data frame that it returns has blanks between its columns."""
    frame = pd.DataFrame({"a": range(3), "b": ["x", "y z", "w"]})
    getattr(frame, f"to_{suffix}")(tmp_path / f"t.{suffix}", index=False)
    script = "def init(): ...\ndef run(mini_batch):\n    return mini_batch.assign(n=len(mini_batch))\n"
    assert score(script, "--tabular", "--mini-batch-size", "2", f"t.{suffix}") == 0
    assert capsys.readouterr().out.splitlines() == ["0 x 2", '1 "y z" 2', "2 w 1"]


def test_a_table_without_rows_is_nothing_to_run(
    score: Score, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pandas gives a frame without rows for it, at which a script may well raise."""
    (tmp_path / "t.csv").write_text("a,b\n")
    assert score("def init(): ...\ndef run(mini_batch): 1 / 0\n", "--tabular", "t.csv") == 0
    assert caplog.text == ""


FAILING = """
def init(): ...
def run(mini_batch):
    if any(path.endswith(("1.txt", "3.txt")) for path in mini_batch):
        raise ValueError("bad file")
    return mini_batch
def shutdown(): print("shut down")
"""


@pytest.mark.parametrize("error", ["ValueError", "SystemExit"])
def test_too_many_failures_end_it(
    score: Score, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, error: str
) -> None:
    """Failures are counted by files; beyond the threshold the rest is not tried, and the exit code is 1."""
    script = FAILING.replace("ValueError", error)
    assert score(script, "--mini-batch-size", "1", "--error-threshold", "1", *FILES) == 1
    output, errors = capsys.readouterr()
    assert [Path(line).name for line in output.splitlines()] == ["0.txt", "2.txt"]
    assert "2 of 4 files have failed, and --error-threshold is 1: it ended with 2 results" in errors
    assert "shut down" in errors
    assert "bad file" in caplog.text
    assert "in score" not in caplog.text


def test_failures_within_the_threshold_are_reported(score: Score, capsys: pytest.CaptureFixture[str]) -> None:
    """With -1 there is no bound."""
    assert score(FAILING, "--mini-batch-size", "1", "--error-threshold", "-1", *FILES) == 0
    output, errors = capsys.readouterr()
    assert len(output.splitlines()) == 3
    assert "2 of 5 files have no result" in errors


def test_files_without_a_result_have_failed(
    score: Score,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A list that is too short counts for those that are missing; a longer one is no failure."""
    first = "def init(): ...\ndef run(mini_batch): return mini_batch[:1]\n"
    assert score(first, "--error-threshold", "3", *FILES) == 1
    assert "run() returned 1 results for 5 items" in caplog.text
    monkeypatch.chdir(tmp_path)
    twice = "def init(): ...\ndef run(mini_batch): return mini_batch * 2\n"
    assert score(twice, *FILES) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 10


@pytest.mark.parametrize("returned", ["None", "'text'", "{}", "3"])
def test_other_results_are_refused(score: Score, caplog: pytest.LogCaptureFixture, returned: str) -> None:
    """A mini-batch whose `run` returns neither a list nor a data frame has failed."""
    assert score(f"def init(): ...\ndef run(mini_batch): return {returned}\n", *FILES) == 1
    assert "run() has to return a list or a data frame with an entry for each item, not" in caplog.text


@pytest.mark.parametrize(
    ("result", "lines"),
    [
        (np.array([[1.5, 2], [3, 4]]), ["[1.5, 2.0]", "[3.0, 4.0]"]),
        ([np.array([1, 2]), np.float32(0.5), "a: b"], ["[1, 2]", "0.5", "a: b"]),
        (pd.Series([1, 2]), ["1", "2"]),
        (({"a": 1},), ["{'a': 1}"]),
        ([], []),
        (pd.DataFrame({"a": []}), []),
    ],
)  # fmt: skip
def test_entries_become_lines(result: Any, lines: list[str]) -> None:
    """Each is one line, without numpy's types."""
    assert lines_of(result) == lines


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "--script needs files"),
        (["none.txt"], "there is no file or folder none.txt"),
        (["--uri", "http://x/score", "0.txt"], "--uri is for a running server"),
        (["--mini-batch-size", "0", "0.txt"], "--mini-batch-size has to be 1 or more, not 0"),
        (["--error-threshold", "-2", "0.txt"], "--error-threshold has to be -1 or more, not -2"),
        (["--model-dir", "none", "0.txt"], "none is not a folder"),
        (["--tabular", "binary.parquet"], "binary.parquet cannot be read as a table"),
    ],
)
def test_impossible_options_are_refused_before_scoring(
    score: Score, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    """Impossible options end with exit code 2 and one line."""
    (tmp_path / "binary.parquet").write_bytes(b"\x00\xff")
    assert score(NAMES.replace("os.path.basename(file)", "file"), *arguments) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("def init(): ...\n", r"does not have a run() function"),
        (
            "def init(): ...\ndef run(): ...\n",
            "run() has to take one argument, the mini-batch; it takes none",
        ),
        ("def init(): ...\ndef run(a, b): ...\n", "it takes ['a', 'b']"),
        (
            "import stoker\ndef init(): ...\n@stoker.batched(shape=(2,))\ndef run(data): ...\n",
            "run() is decorated for requests, not for mini-batches",
        ),
        ("def init(): 1 / 0\ndef run(mini_batch): ...\n", "ZeroDivisionError"),
    ],
)
def test_a_script_that_cannot_be_loaded_is_refused(
    score: Score, capsys: pytest.CaptureFixture[str], script: str, reason: str
) -> None:
    """With exit code 3, as by `stoker serve`."""
    assert score(script, "0.txt") == 3
    assert reason in capsys.readouterr().err


def test_a_script_that_is_not_there_is_named(score: Score, capsys: pytest.CaptureFixture[str]) -> None:
    """And files without a script are not taken for rows."""
    assert main(["score", "--script", "none.py", "0.txt"]) == 3
    assert "none.py is not a Python file: it does not exist" in capsys.readouterr().err
    assert main(["score", "--data", "rows.json", "0.txt"]) == 2
    assert "0.txt goes with --script" in capsys.readouterr().err
