"""The arguments of `stoker train`."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import pytest

from stoker.errors import OperatorError
from stoker.settings.workspace import Workspace
from stoker_runs.launch import submission
from stoker_runs.launch.registration import origin_of_copy
from stoker_training import NETWORKS, TrainingSpec, as_run
from stoker_training.commands import train


def parse(*arguments):
    parser = argparse.ArgumentParser(prog="stoker train")
    train.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [
        ([], TrainingSpec()),
        (
            ["--network", "cnn", "--epochs", "3", "--seed", "5", "--output", "runs/a", "--data", "mnist"],
            TrainingSpec(network="cnn", epochs=3, seed=5, output=Path("runs/a"), data=Path("mnist")),
        ),
    ],
    ids=["defaults", "all given"],
)
def test_arguments_become_the_spec(monkeypatch, arguments, spec):
    """The command line's defaults are the spec's, and every argument reaches it."""
    submitted = []
    monkeypatch.setattr(as_run, "submit_training", lambda one, *_, **more: submitted.append((one, more)))
    train.submit_training(parse("mnist", *arguments, "--target", "t", "--gpus", "2", "--nodes", "3"), None)
    assert submitted == [(spec, {"target": "t", "experiment": "mnist", "gpus": 2, "nodes": 3})]


def test_outputs_of_a_training_run_are_copied_with_their_origin(tmp_path, monkeypatch, tiny_mnist):
    """The run has the code, the data's digest and the command; a copy of its outputs knows whose they are."""
    submitted = []
    monkeypatch.setattr(
        as_run, "submit", partial(submission.submit, spawn=lambda *one: submitted.append(one))
    )
    monkeypatch.setattr(as_run, "find_spec", lambda name: name)
    workspace = Workspace(tmp_path / "workspace")
    spec = TrainingSpec(network="softmax", epochs=2, data=tiny_mnist, output=tmp_path / "outputs")
    folder = as_run.submit_training(spec, workspace, gpus=0)
    assert submitted == [(folder, workspace)]
    record = folder.record()
    tree = workspace.snapshots_dir / record.snapshot
    assert (tree / "stoker_training" / "training.py").is_file()
    assert "main()" in (tree / "train.py").read_text()
    assert list(record.data) == ["mnist"]
    line = " ".join(record.definition.arguments)
    assert line == "--network softmax --seed 1 --epochs 2 --data $AZUREML_DATAREFERENCE_mnist"
    metrics = {"written_by": "stoker train", "run": folder.id}
    (folder.outputs / "metrics.json").write_text(json.dumps(metrics))
    (folder.outputs / "model.onnx").write_bytes(b"weights")
    as_run.collect(folder, spec.output)
    assert origin_of_copy(workspace, spec.output)["run"] == folder.id
    (spec.output / "model.onnx").write_bytes(b"others")
    assert origin_of_copy(workspace, spec.output) == {}


def test_invalid_training_is_refused_before_writing(tmp_path, monkeypatch):
    """A missing data file, a foreign folder and a missing package are refused."""
    workspace = Workspace(tmp_path / "workspace")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    for spec, words in (
        (TrainingSpec(data=tmp_path / "none", output=tmp_path / "o"), "is not a folder"),
        (TrainingSpec(data=tmp_path / "notes", output=tmp_path / "o"), "train-images"),
        (TrainingSpec(output=tmp_path / "notes"), "choose another one with --output"),
    ):
        with pytest.raises(OperatorError, match=words):
            as_run.submit_training(spec, workspace)
    monkeypatch.setattr(as_run, "find_spec", lambda name: None if name == "tf2onnx" else name)
    with pytest.raises(OperatorError, match=r"not installed \(tf2onnx\)"):
        train.submit_training(parse("mnist", "--output", str(tmp_path / "o")), workspace)
    assert not workspace.root.exists()


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_is_offered(network):
    """The command offers all networks of the module."""
    assert parse("mnist", "--network", network).network == network


@pytest.mark.parametrize(
    "arguments", [[], ["imagenet"], ["mnist", "--network", "transformer"], ["mnist", "--epochs", "many"]]
)
def test_wrong_arguments_are_refused_with_the_usage(arguments, capsys):
    """A mistyped command ends with exit code 2 and the usage line."""
    with pytest.raises(SystemExit) as stopped:
        parse(*arguments)
    assert stopped.value.code == 2
    assert "usage: stoker train" in capsys.readouterr().err
