"""`stoker status`: what servers say of themselves."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.live_server import free_port

from stoker.cli import main
from stoker.commands import running_server, status
from stoker.errors import OperatorError
from stoker.settings.versions import ON_DEMAND
from stoker.settings.workspace import Workspace
from stoker.supervisor import server_record
from stoker.supervisor.server_record import ServerRecord, recorded

RECORD = ServerRecord.of_this_process("http://127.0.0.1:8080")
MODELS = [
    {"name": "digits", "version": "3", "state": "READY"},
    {"name": "resnet", "version": "1", "state": "LOADING"},
]

Answers = Callable[[bool], None]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Have a server answer, and say whether it is ready."""

    def set_up(ready: bool) -> None:
        def answer(_: argparse.Namespace, path: str, **__: Any) -> bytes:
            if path == "/v2/health/ready" and not ready:
                raise OperatorError("the server answers with status 503")
            return json.dumps(MODELS).encode()

        monkeypatch.setattr(running_server, "ask_admin", answer)

    return set_up


def test_row_of_a_server_has_its_models(answers: Answers) -> None:
    """With the state of those that are not ready."""
    answers(True)
    state = status.observe_server(RECORD, None)
    row = state.row(RECORD.started_s + 200)
    assert row[0] == RECORD.uri
    assert row[2:] == ("3 min", "yes", "digits:3, resnet:1 (loading)")


def test_models_on_demand_are_counted(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in memory are named: a server may know hundreds of others."""
    others = [
        {"name": f"m{i}", "version": "1", "state": "UNAVAILABLE", "reason": ON_DEMAND} for i in range(500)
    ]
    monkeypatch.setattr(sys.modules[__name__], "MODELS", [MODELS[0], *others])
    answers(True)
    assert (
        status.observe_server(RECORD, None).row(RECORD.started_s)[-1] == "digits:3, 500 not loaded, on demand"
    )


def test_keys_in_json_are_of_one_form(
    answers: Answers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words with underscores; a server that is not ready makes the exit code 1."""
    answers(False)
    with recorded(Workspace(tmp_path), RECORD):
        assert main(["status", "--json", "--workspace", str(tmp_path)]) == 1
    (shown,) = json.loads(capsys.readouterr().out)
    assert set(shown) == {"uri", "pid", "started_at", "ready", "draining", "models"}
    assert shown["ready"] is False


def test_a_reloaded_server_drains_beside_its_successor(
    answers: Answers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not asked, for its successor would answer at its address, and is no reason for another exit code."""
    answers(True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        process = str(server_record._identity(other.pid))
        old = msgspec.structs.replace(RECORD, pid=other.pid, process=process, started_s=RECORD.started_s - 60)
        with recorded(Workspace(tmp_path), old), recorded(Workspace(tmp_path), RECORD):
            assert main(["status", "--workspace", str(tmp_path)]) == 0
            _, first, second = capsys.readouterr().out.splitlines()
            assert (str(old.pid) in first, " draining " in first) == (True, True)
            assert (str(RECORD.pid) in second, " yes " in second) == (True, True)
            assert main(["status", str(old.pid), "--json", "--workspace", str(tmp_path)]) == 0
            (shown,) = json.loads(capsys.readouterr().out)
            assert (shown["ready"], shown["draining"]) == (False, True)


def test_a_server_that_does_not_answer_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the reason; one that is not there is no server."""
    words = ["status", "--workspace", str(tmp_path)]
    record = msgspec.structs.replace(RECORD, uri=f"http://127.0.0.1:{free_port()}")
    with recorded(Workspace(tmp_path), record):
        assert main(words) == 1
        printed = capsys.readouterr()
        assert "  no     -\n" in printed.out
        assert "cannot be reached" in printed.err
        assert main([*words, "1"]) == 2
        assert "no server here has the process id, the port or the model 1;" in capsys.readouterr().err
    assert main(words) == 2
    assert "no server of the workspace" in capsys.readouterr().err
