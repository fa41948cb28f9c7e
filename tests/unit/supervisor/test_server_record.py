"""Records of running servers."""

import json
import os
from pathlib import Path

import msgspec

from stoker.settings.workspace import Workspace
from stoker.supervisor.server_record import ServerRecord, recorded, running_servers

RECORD = ServerRecord.of_this_process("http://127.0.0.1:8080")


def folder_of(workspace: Workspace) -> Path:
    return workspace.run_dir / "servers"


def test_a_server_is_found_while_it_runs(tmp_path: Path) -> None:
    """By its own workspace alone; what it has written is for its owner, and gone with it."""
    workspace = Workspace(tmp_path / "one")
    with recorded(workspace, RECORD):
        assert running_servers(workspace) == [RECORD]
        assert running_servers(Workspace(tmp_path / "other")) == []
        assert {path.stat().st_mode & 0o777 for path in folder_of(workspace).iterdir()} == {0o600}
    assert running_servers(workspace) == []
    assert list(folder_of(workspace).iterdir()) == []


def test_record_of_an_ended_server_is_removed(tmp_path: Path) -> None:
    """Records of killed processes and reused ids are removed; those of other machines stay."""
    workspace = Workspace(tmp_path / "workspace")
    with recorded(workspace, msgspec.structs.replace(RECORD, process=f"{RECORD.process}0")):
        (own,) = folder_of(workspace).iterdir()
        elsewhere = own.with_name(f"x{own.name}")
        elsewhere.write_bytes(own.read_bytes())
        own.with_name(f"{os.uname().nodename}-damaged.json").write_text("[")
        assert running_servers(workspace) == []
        assert not own.exists()
        assert elsewhere.exists()


def test_a_process_that_has_ended_does_not_run() -> None:
    """Also while its parent has not looked at it."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not msgspec.structs.replace(RECORD, pid=child).is_running
    os.waitpid(child, 0)
    assert not msgspec.structs.replace(RECORD, pid=child, process="").is_running


def test_a_server_runs_where_nothing_can_be_written(tmp_path: Path) -> None:
    """It is not found then."""
    (tmp_path / "file").write_text("")
    workspace = Workspace(tmp_path / "file" / "workspace")
    with recorded(workspace, RECORD):
        assert running_servers(workspace) == []


def test_fields_of_other_versions_are_passed_over(tmp_path: Path) -> None:
    """A server of another version of Stoker may run in the same workspace."""
    workspace = Workspace(tmp_path / "workspace")
    with recorded(workspace, RECORD):
        (own,) = folder_of(workspace).iterdir()
        own.write_text(json.dumps({**json.loads(own.read_bytes()), "another": 1}))
        assert running_servers(workspace) == []
        assert own.exists()
