"""`Model.profile`: users' code calls it unchanged, and its result is that of `stoker profile`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import stoker.azure  # noqa: F401  # provides azureml

from azureml.core import Model, Workspace  # isort: skip
from azureml.core.model import InferenceConfig
from azureml.core.profile import ModelProfile
from azureml.exceptions import UserErrorException, WebserviceException

from stoker_azure.sdk import profile as profiles

CHOICE = {
    "settings": {"max_batch_rows": 64, "instances": 1},
    "limit": "device",
    "confirmed": {"p50_ms": 5.0, "p99_ms": 9.0, "load_rows_per_s": 800.0, "limit": "generator"},
}
TOLD = {"cores": 2, "memory_bytes": 341_000_000, "choice": CHOICE}


class Stoker:
    """Stands in for the command's process: notes how it is called, and writes its results."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, results: object = None, complaint: str = "") -> None:
        self.results, self.complaint = results, complaint
        self.command: list[str] = []
        monkeypatch.setattr(profiles.subprocess, "Popen", self.start)

    def start(self, command, *, stdout, stderr, **_):
        self.command = command
        stdout.write(json.dumps(self.results).encode() if self.results else b"")
        stderr.write(self.complaint.encode())
        return self

    def poll(self) -> int:
        return 0

    wait = poll


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.pkl").write_bytes(b"1")
    (tmp_path / "score.py").write_text("def init():\n    pass\n\n\ndef run(data):\n    return data\n")
    (tmp_path / "request.json").write_text('{"data": [[1]]}')
    ws = Workspace.from_config()
    Model.register(ws, "model.pkl", "churn")
    return ws


def test_profile_has_the_results(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Azure's names and methods; it can be found again by its name."""
    stoker = Stoker(monkeypatch, TOLD)
    profile = Model.profile(
        ws, "churn-profile", [Model(ws, "churn")], InferenceConfig("score.py"), "request.json", cpu=1.0
    )
    profile.wait_for_completion(True)
    details = profile.get_details()
    assert (profile.state, details["state"]) == ("Succeeded", "Succeeded")
    assert (details["recommendedCpu"], details["recommendedMemoryInGB"]) == (2.0, 0.34)
    assert (details["latencyPercentile99InMs"], details["measuredQueriesPerSecond"]) == (9.0, 800.0)
    assert details["limit"] == "generator"
    assert (details["requestedCpu"], details["settings"]) == (1.0, CHOICE["settings"])
    assert ModelProfile(ws, "churn-profile").serialize()["modelIds"] == ["churn:1"]
    assert stoker.command[:4] == [sys.executable, "-P", "-m", "stoker.cli"]
    assert stoker.command[stoker.command.index("--data") + 1] == str(Path("request.json").absolute())
    config = Path(stoker.command[stoker.command.index("--config") + 1])
    assert "score.py" in config.read_text()


def test_a_profile_that_fails_says_why(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last line of the command, as an error and not as an exception, as on Azure."""
    Stoker(monkeypatch, complaint="stoker profile: give one by --data FILE\n")
    profile = Model.profile(ws, "churn-profile", [], InferenceConfig("score.py"), None)
    profile.wait_for_completion()
    assert profile.state == "Failed"
    assert "--data FILE" in profile.get_details()["error"]["message"]
    assert profile.recommended_cpu is None


def test_impossible_profile_raises_azures_exception(ws: Workspace) -> None:
    """A bad name, a request that is not there, and a profile that nobody has made."""
    with pytest.raises(UserErrorException, match="name of a profile"):
        Model.profile(ws, "", [], InferenceConfig("score.py"), None)
    with pytest.raises(UserErrorException, match="no file with a request"):
        Model.profile(ws, "churn-profile", [], InferenceConfig("score.py"), "nothing.json")
    with pytest.raises(WebserviceException, match="no profile 'other'"):
        ModelProfile(ws, "other")
