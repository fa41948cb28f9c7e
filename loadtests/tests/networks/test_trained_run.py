"""The run folder that the benches of entry scripts serve."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stoker_bench.errors import BenchedServerError
from stoker_bench.networks.onnx_graphs import seeded_mlp
from stoker_bench.networks.trained_run import NEEDED, classes_of, trained_run


def test_folder_that_is_there_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained for a run folder that is complete."""
    for name in NEEDED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("nothing is to be trained"))
    assert trained_run(tmp_path) == tmp_path


def test_other_folders_are_refused(tmp_path: Path) -> None:
    """A folder that lacks a model is no run folder, and nothing is written into it."""
    (tmp_path / "model.onnx").touch()
    with pytest.raises(BenchedServerError, match="not the run folder of `stoker train mnist`"):
        trained_run(tmp_path)


def test_absent_folder_is_trained_or_the_failure_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command gets the folder; the operator gets its error."""
    commands: list[list[str]] = []

    def fail(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=1, stdout="no training data\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(BenchedServerError, match="no training data"):
        trained_run(tmp_path / "run")
    assert commands[0][-2:] == ["--output", str(tmp_path / "run")]


def test_classes_are_those_of_the_runs_model(tmp_path: Path) -> None:
    """One class a row, by the largest of the model's outputs."""
    mlp = seeded_mlp(widths=(3, 4, 5))
    mlp.save(tmp_path / "model.onnx")
    rows = np.random.default_rng(1).random((6, 3), np.float32)
    assert classes_of(tmp_path)(rows).tolist() == mlp.logits(rows).argmax(axis=1)[:, None].tolist()
