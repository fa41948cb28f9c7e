"""Packages beside `azureml.core` that tutorials import: open data sets, TensorBoard, MLflow."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import stoker.azure  # noqa: F401  # provides azureml

# isort: split
from azureml.core import Experiment, Workspace
from azureml.exceptions import UserErrorException
from azureml.mlflow import get_portal_url
from azureml.opendatasets import MNIST, NycTlcGreen
from azureml.tensorboard import Tensorboard
from azureml.tensorboard.export import export_to_tensorboard

from stoker_azure.exceptions import NotOffered
from stoker_azure.sdk import open_datasets, tensorboard

FILES = [f"{name}.gz" for name in open_datasets._FILES]


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Workspace.from_config()


def test_mnist_is_read_from_a_folder(ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the tutorial downloads and registers it; without a folder, or without its files, a sentence says so."""
    with pytest.raises(NotOffered, match=r"set STOKER_OPEN_DATASETS to a folder with mnist/train-labels"):
        MNIST.get_file_dataset()
    monkeypatch.setenv("STOKER_OPEN_DATASETS", str(tmp_path / "open"))
    with pytest.raises(UserErrorException, match=r"has no t10k-images-idx3-ubyte\.gz"):
        MNIST.get_file_dataset()
    (tmp_path / "open" / "mnist").mkdir(parents=True)
    for name in FILES:
        (tmp_path / "open" / "mnist" / name).write_bytes(name.encode())
    dataset = MNIST.get_file_dataset()
    dataset.download(str(tmp_path / "data"), overwrite=True)
    assert sorted(file.name for file in (tmp_path / "data").iterdir()) == FILES
    dataset.register(workspace=ws, name="mnist_opendataset", create_new_version=True)
    assert sorted(dataset.to_path()) == [f"/{name}" for name in FILES]
    assert MNIST.get_file_dataset().register(ws, "mnist_opendataset").version == 1


def test_mnist_is_fetched_from_a_mirror(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are fetched when they are needed."""
    monkeypatch.setenv("STOKER_OPEN_DATASETS", "https://mirror.example/data/")
    assert "https://mirror.example/data/mnist/t10k-images-idx3-ubyte.gz" in repr(MNIST.get_file_dataset())


def test_other_open_data_name_a_remedy(ws: Workspace) -> None:
    """Classes of other data sets, and tables."""
    with pytest.raises(NotOffered, match="NycTlcGreen is not offered: download the data"):
        NycTlcGreen(start_date=None)
    with pytest.raises(NotOffered, match="get_file_dataset"):
        MNIST.get_tabular_dataset()


def test_tensorboard_shows_runs(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is started on event files of the runs, in a folder of its own within the user's; `stop` ends it."""
    with Experiment(ws, "digits").start_logging() as run:
        run.log("loss", 0.5)
        with run.child_run() as child:
            child.log("loss", 0.25)
    started: list[list[str]] = []

    class Process:
        def __init__(self, command: list[str]) -> None:
            started.append(command)

        def terminate(self) -> None:
            started.append(["terminated"])

        def wait(self) -> None:
            """It has ended."""

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(tensorboard, "find_spec", lambda _: None)
    (tmp_path / "kept.txt").write_text("kept")
    board = Tensorboard([run], local_root=str(tmp_path), port=6007)
    with pytest.raises(UserErrorException, match="pip install tensorboard; the event files are in"):
        board.start()
    monkeypatch.setattr(tensorboard, "find_spec", lambda _: True)
    assert board.start() == "http://localhost:6007/"
    with pytest.raises(UserErrorException, match="runs already"):
        board.start()
    board.stop()
    board.stop()
    assert [command[-1] for command in started] == ["6007", "terminated"]
    assert (tmp_path / "kept.txt").exists()
    assert [*(tmp_path / "stoker-runs" / run.id).glob("events*")]
    export_to_tensorboard(run, str(tmp_path / "logs"))
    assert {path.parent.name for path in (tmp_path / "logs").rglob("events*")} == {run.id, child.id}
    export_to_tensorboard(Experiment(ws, "digits"), str(tmp_path / "all"), recursive=False)
    assert {path.parent.name for path in (tmp_path / "all").rglob("events*")} == {run.id}
    assert get_portal_url(run) == run.get_portal_url()
