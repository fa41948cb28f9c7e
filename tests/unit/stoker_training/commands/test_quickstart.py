"""`stoker quickstart`: its registered models, without the training and the server."""

import argparse
import socket
from pathlib import Path

import pytest

from stoker.errors import DeviceUnavailable, InvalidSettings
from stoker.gpu import survey
from stoker.models.repository import Repository
from stoker.settings.image_input import ImageInput, read_image_input
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker.supervisor import serving
from stoker.supervisor.predecessor import Predecessor
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Definition, RunRecord
from stoker_runs.records.states import RunState, Status
from stoker_runs.records.store import RunStore
from stoker_training.commands import quickstart


def test_the_digits_take_images_of_ink_on_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trained model is registered once, names its run, and turns ink on paper into its light digits."""
    served: list[Workspace] = []

    def train(workspace: Workspace, _: Path | None) -> RunFolder:
        record = RunRecord("mnist_1_0000000a", "mnist", 1000, Definition("train.py"), snapshot="feed")
        folder = RunStore(workspace.runs_dir).create(record, RunState(Status.COMPLETED))
        (folder.outputs / "score.py").write_text("def init(): ...\ndef run(raw_data): ...\n")
        return folder

    def serve(
        _: ServerSettings, workspace: Workspace, begun_s: float, predecessor: Predecessor | None
    ) -> int:
        served.append(workspace)
        return 0

    monkeypatch.setattr(quickstart, "_train", train)
    monkeypatch.setattr(serving, "serve", serve)
    parser = argparse.ArgumentParser()
    quickstart.add_arguments(parser)
    for _ in range(2):
        assert quickstart.run(parser.parse_args(["--workspace", str(tmp_path / "w"), "--port", "0"])) == 0
    (registered,) = Repository(served[1].models_dir).list()
    assert registered.reference == "mnist:1"
    assert dict(registered.properties) == {
        "run": "mnist_1_0000000a",
        "experiment": "mnist",
        "snapshot": "feed",
    }
    assert registered.image is not None
    assert read_image_input(dict(registered.image)) == ImageInput(28, 28, 1, scale=255, invert=True)


def test_impossible_server_settings_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port in use and a missing GPU are reported before the training."""
    monkeypatch.setattr(quickstart, "_train", lambda *_: pytest.fail("it has trained"))
    monkeypatch.setattr(survey, "gpus", list)
    parser = argparse.ArgumentParser()
    quickstart.add_arguments(parser)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSettings, match=f"port {port}"):
            quickstart.run(parser.parse_args(["--workspace", str(tmp_path), "--port", str(port)]))
    with pytest.raises(DeviceUnavailable, match="cuda:0 cannot be used"):
        quickstart.run(parser.parse_args(["--workspace", str(tmp_path), "--port", "0", "--device", "cuda:0"]))
