"""How commands find the server that is meant."""

import argparse
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.commands import running_server
from stoker.commands.running_server import chosen_server, find_server
from stoker.errors import InvalidSettings, OperatorError
from stoker.settings.workspace import Workspace
from stoker.supervisor import server_record
from stoker.supervisor.server_record import ServerRecord, recorded

FIRST = ServerRecord.of_this_process("http://127.0.0.1:8080")


@pytest.fixture
def second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerRecord]:
    """Two servers of a workspace that run here: this process has the model digits, the returned one has resnet."""

    def answer(args: argparse.Namespace, path: str, **_: Any) -> bytes:
        assert path == "/v2/repository/index"
        return json.dumps([{"name": "digits" if args.uri == FIRST.uri else "resnet"}]).encode()

    monkeypatch.setattr(running_server, "ask_admin", answer)
    monkeypatch.delenv("STOKER_PORT", raising=False)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other, ExitStack() as stack:
        process = str(server_record._identity(other.pid))
        record = msgspec.structs.replace(FIRST, pid=other.pid, process=process, uri="http://127.0.0.1:9000")
        for each in (FIRST, record):
            stack.enter_context(recorded(Workspace(tmp_path), each))
        yield record


@pytest.mark.parametrize("named", ["PID", "9000", "resnet"])
def test_server_is_named_by_its_process_its_port_or_a_model(
    tmp_path: Path, second: ServerRecord, named: str
) -> None:
    """Of several servers of a workspace."""
    server = str(second.pid) if named == "PID" else named
    assert chosen_server(argparse.Namespace(server=server, workspace=tmp_path)) == second


def test_servers_are_named_if_none_is_chosen(tmp_path: Path, second: ServerRecord) -> None:
    """A model that none of them has is an error too."""
    with pytest.raises(InvalidSettings, match=f"2 servers run here: .*{second.pid}"):
        chosen_server(argparse.Namespace(server=None, workspace=tmp_path))
    with pytest.raises(InvalidSettings, match="the model bert; served here: digits, resnet"):
        chosen_server(argparse.Namespace(server="bert", workspace=tmp_path))


def test_server_with_the_model_is_found(
    tmp_path: Path, second: ServerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name, the one at the default address is meant, or the one whose port a variable has."""
    assert find_server(tmp_path, "resnet") == second
    assert find_server(tmp_path) is None
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(running_server, "SERVER", "http://127.0.0.1:8000")
        with pytest.raises(InvalidSettings, match=f"2 servers run here: .*{second.pid}.*; name one by --uri"):
            find_server(tmp_path)
    monkeypatch.setenv("STOKER_PORT", "9000")
    assert find_server(tmp_path, "resnet") is None


def test_only_server_of_the_workspace_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found at any port, and commands of administration reach it there too."""
    monkeypatch.delenv("STOKER_PORT", raising=False)
    assert find_server(tmp_path) is None
    record = msgspec.structs.replace(FIRST, uri="http://127.0.0.1:1")
    with recorded(Workspace(tmp_path), record):
        assert find_server(tmp_path) == record
        args = argparse.Namespace(uri=None, key=None, cacert=None, workspace=tmp_path)
        with pytest.raises(OperatorError, match=r"the server at http://127\.0\.0\.1:1 cannot be reached"):
            running_server.ask_admin(args, "/v2")
