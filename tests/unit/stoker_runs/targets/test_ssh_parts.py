"""Parts of the engine for machines by SSH that need no machine."""

import asyncio
import ctypes.util
import io
import json
import shlex
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import asyncssh
import pytest

from stoker.cli import main
from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Definition, RunRecord
from stoker_runs.records.snapshots import data_digests, data_seen
from stoker_runs.records.states import RunState
from stoker_runs.records.store import RunStore
from stoker_runs.targets.definitions import SshSettings, Target, checked_settings, find_target
from stoker_runs.targets.engine import EngineFailure, Job, Presence, attempt_state
from stoker_runs.targets.porter import Porter, command, first_line
from stoker_runs.targets.registry import no_compiler_for_libraries
from stoker_runs.targets.ssh.engine import SshEngine
from stoker_runs.targets.ssh.link import HostKeys
from stoker_runs.targets.ssh.transfer import checked_entries, collect, list_folder, send_data

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICypcGbSAuDIGoJWCRr0+XPjj3K2YfLjMMJMyoOKu80i"


@pytest.mark.parametrize("key", ["", "SHA256:was"])
def test_the_advice_about_a_host_key_can_be_run(
    key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is a whole command line, with all that the target has, which the command takes as it is."""
    settings = {
        "address": "host.lab",
        "port": 2222,
        "username": "me",
        "key_file": "/keys/my key",
        "host_key": key,
    }
    given = {name: value for name, value in settings.items() if value}
    found = SshSettings(name="box", password="s3cret", **given)  # type: ignore[arg-type]
    keys = HostKeys(found)
    key = asyncssh.import_public_key(PUBLIC_KEY)
    assert not keys.client().validate_host_public_key("host.lab", "192.0.2.1", 2222, key)
    hint = keys.refusal().failure.hint
    line = hint[hint.index("stoker targets attach") :]
    assert "s3cret" not in hint
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO("s3cret\n"))
    program, *words = shlex.split(line)
    assert program == "stoker"
    assert main([*words, "--no-check"]) == 0
    target = find_target(Workspace(tmp_path).targets_dir, "box")
    shown = str(asyncssh.import_public_key(PUBLIC_KEY).get_fingerprint())
    assert target.settings == {**settings, "host_key": shown}


@pytest.mark.parametrize(
    ("code", "container", "does_without"),
    [
        ("DockerUnavailable", {"optional": True}, True),
        ("DockerUnavailable", {"image": "lab/train:1"}, False),
        ("ImageNotFound", {"optional": True}, True),
        ("ImageNotFound", {"image": "lab/train:1"}, False),
    ],
)
def test_run_of_azure_needs_no_container_on_a_machine_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, container: dict[str, Any], does_without: bool
) -> None:
    """With a line, for lack of a program or of an image; one that names its image natively is refused."""

    def prepared(*_: object) -> None:
        raise EngineFailure("on box: there is none", "install docker", code=code)

    target = Target("box", "ssh", {"address": "host.lab"}).in_containers()
    engine = SshEngine(target, Workspace(tmp_path))
    assert engine.containers is not None
    monkeypatch.setattr(engine, "_link", SimpleNamespace(call=lambda _: None))
    monkeypatch.setattr(engine.containers, "prepared", prepared)
    record = RunRecord("e_1_0a1b2c3d", "e", 1, Definition("train.py", container=container))
    job, notes = Job(RunFolder(tmp_path), record, 1, tmp_path), list[str]()
    if does_without:
        assert engine.prepare_container(engine.containers, job, notes.append) is None
        assert notes == [
            "a container is asked for, but the script runs without one: on box: there is none; install docker"
        ]
    else:
        with pytest.raises(EngineFailure, match="on box: there is none"):
            engine.prepare_container(engine.containers, job, notes.append)


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "link/file", ""])
def test_a_machine_writes_nowhere_else(name: str) -> None:
    """Names that lead out of the folder, or through a link that came with them, are not taken."""
    with pytest.raises(EngineFailure, match="has sent"):
        checked_entries([["l", "link", "/etc"], ["f", name, 1, False]])


@pytest.mark.parametrize(
    "entries",
    [
        [["l", "d", "/etc"], ["d", "d"]],
        [["f", "a", 1, False], ["f", "./a", 1, False]],
        [["f", "a", 1, False], ["f", "a/b", 1, False]],
        [["f", "a/b/c", 1, False], ["f", "a-b", 1, False], ["d", "a/b"], ["l", "a", "/etc"]],
        [["f", "a", -1, False]],
        [["f", "a"]],
        [["x", "a"]],
        [["d", "\ud800"]],
        [["l", "a", "\ud800"]],
        [["l", "a", "b\0c"]],
        [["l", "a", ""]],
        [["f", "a", True, False], ["f", "b", 1, 1]],
        ["d"],
        [["d", 7]],
    ],
)
def test_listings_that_no_folder_has_are_not_taken(entries: list[list[Any]]) -> None:
    """A name is one thing, once, and below folders alone."""
    with pytest.raises(EngineFailure, match="has sent"):
        checked_entries(entries)


class CutPorter:
    """A porter of a machine that has ended an attempt, with these outputs; its connection may be cut as it sends.

    Args:
        outputs: What it lists.
        cut_at: How many bytes it sends before it is cut; None for all.
    """

    def __init__(self, outputs: list[list[Any]], cut_at: int | None = None) -> None:
        self.outputs, self.left = outputs, cut_at
        self.offsets: list[int] = []

    async def ask(self, **request: Any) -> tuple[dict[str, Any], bytes]:
        """Answer a look or a listing."""
        if request["op"] == "poll":
            seen = {"agent": {"a": 1}, "heartbeat": None, "sizes": {}, "exit": {"code": 0}}
            return {"seen": seen, "chunks": []}, b""
        listing = {"files": [], "children": [], "work/outputs": self.outputs, "work/logs": []}
        return {}, json.dumps(listing).encode()

    async def exchange(self, requests: Any) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
        """Send pieces of files of the byte `x`."""
        for head, _ in requests:
            self.offsets.append(head["offset"])
            if self.left == 0:
                raise ConnectionError
            size = head["size"] if self.left is None else min(head["size"], self.left)
            self.left = None if self.left is None else self.left - size
            yield {}, b"x" * size


@pytest.fixture
def ended_job(tmp_path: Path) -> Job:
    """An attempt on a machine, which has ended."""
    record = RunRecord("e_1_0a1b2c3d", "e", 1, Definition("train.py"))
    folder = RunStore(tmp_path / "runs").create(record, RunState())
    job = Job(folder, record, 1, tmp_path / "snapshots")
    job.place.mkdir(parents=True)
    return job


def test_a_link_of_a_broken_listing_is_no_way_out(ended_job: Job, tmp_path: Path) -> None:
    """A folder of the next listing that was a link in the one before is a folder here."""
    victim = tmp_path / "victim"
    victim.mkdir()
    first = CutPorter([["l", "d", str(victim)], ["f", "big", 5, False]], cut_at=0)
    with pytest.raises(ConnectionError):
        asyncio.run(collect(cast("Porter", first), ended_job))
    asyncio.run(collect(cast("Porter", CutPorter([["d", "d"], ["f", "d/evil", 3, True]])), ended_job))
    assert list(victim.iterdir()) == []
    evil = ended_job.folder.outputs / "d" / "evil"
    assert (evil.read_bytes(), evil.stat().st_mode & 0o777) == (b"xxx", 0o700)
    assert not (ended_job.folder.outputs / "big").exists()
    assert not (ended_job.place / "incoming").exists()


def test_interrupted_download_continues_at_the_cut(ended_job: Job) -> None:
    """A file continues at the cut, also after two cuts."""
    listing: list[list[Any]] = [["d", "deep"], ["f", "deep/large", 5, False], ["f", "other", 4, False]]
    for cut_at, offsets in ((3, [0, 0]), (2, [3, 0]), (None, [0])):
        porter = CutPorter(listing, cut_at)
        try:
            asyncio.run(collect(cast("Porter", porter), ended_job))
        except (ConnectionError, EngineFailure):
            assert cut_at is not None
        assert porter.offsets == offsets
    assert {
        path.name: path.read_bytes() for path in ended_job.folder.outputs.rglob("*") if path.is_file()
    } == {
        "large": b"xxxxx",
        "other": b"xxxx",
    }


def test_names_of_very_many_parts_are_looked_at_once() -> None:
    """With a look at each folder above the name this takes minutes, in which no run of this machine is followed."""
    deep = "a/" * 200_000
    assert checked_entries([["d", deep]]) == [["d", deep]]
    with pytest.raises(EngineFailure) as refused:
        checked_entries([["l", "a", "/etc"], ["d", deep]])
    assert len(str(refused.value)) < 300


def test_links_and_odd_names_are_taken() -> None:
    """A link is only kept, and never followed."""
    entries = [["l", "link", "/etc"], ["d", "deep"], ["f", "deep/new\nline", 1, False]]
    assert checked_entries(entries) == entries


def test_a_folder_is_known_by_its_content(tmp_path: Path) -> None:
    """Equal ones have one digest, wherever they are; each content is listed once."""
    for place in ("one", "two"):
        (tmp_path / place / "deep").mkdir(parents=True)
        for name in ("a", "deep/b"):
            (tmp_path / place / name).write_text("same")
        (tmp_path / place / "link").symlink_to("a")
    one, two = list_folder(tmp_path / "one"), list_folder(tmp_path / "two")
    assert one.digest == two.digest
    assert sorted(entry[:2] for entry in one.entries) == [
        ["d", "deep"],
        ["f", "a"],
        ["f", "deep/b"],
        ["l", "link"],
    ]
    assert len(one.paths) == 1
    (tmp_path / "two" / "a").chmod(0o700)
    assert list_folder(tmp_path / "two").digest != one.digest


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "address is missing"),
        ({"address": ""}, "address must be a text"),
        ({"address": "-oProxyCommand=x"}, "address must be a text"),
        ({"address": "x", "port": 70000}, "port must be a whole number between 1 and 65535, got 70000"),
        ({"address": "x", "username": 7}, "username must be a text, got 7"),
    ],
)
def test_settings_are_looked_at(tmp_path: Path, settings: dict[str, object], words: str) -> None:
    """A refusal names the file and the key."""
    with pytest.raises(InvalidSettings, match=words):
        checked_settings(tmp_path / "vm.yaml", {"type": "ssh", **settings})


def test_secrets_that_others_read_are_not_used(tmp_path: Path) -> None:
    """Mode 0600 or nothing; they are in no representation either."""
    secret = tmp_path / "vm.secret"
    secret.write_text('{"password": "hunter2"}')
    target = Target("vm", "ssh", {"address": "x"})
    secret.chmod(0o640)
    with pytest.raises(InvalidSettings, match="chmod 600"):
        SshSettings.of(target, tmp_path)
    secret.chmod(0o600)
    found = SshSettings.of(target, tmp_path)
    assert found.password == "hunter2"
    assert "hunter2" not in repr(found)


def test_the_first_words_pass_through_any_shell() -> None:
    """The command has nothing that a shell changes between its double quotes; the line is one of ASCII."""
    _, _, quoted = command("/opt/my python/bin/python3").partition(' -c "')
    assert not set(quoted.removesuffix('"')) & set("\"'$`\\!\n")
    line = first_line("~/Läufe '\"", "0" * 64, 7)
    assert (line.count(b"\n"), line[-1:], line.isascii()) == (1, b"\n", True)
    compile(line, "line", "exec")


def test_report_of_the_agent_becomes_the_attempt_s_state() -> None:
    """Its lock, its files and its end give the state."""
    nothing = {"exit": None, "alive": False, "agent": None, "heartbeat": None, "sizes": {}}
    assert attempt_state(nothing).presence is Presence.ABSENT
    assert attempt_state({**nothing, "agent": {}}).presence is Presence.GONE
    begun = {**nothing, "alive": True, "agent": {"started_ms": 5}, "heartbeat": {"problem": "disk"}}
    assert attempt_state(begun).started_ms is None
    assert attempt_state({**begun, "sizes": {"log_0.txt": 0}}).started_ms == 5
    assert attempt_state(begun).reason == "disk"
    assert attempt_state({**begun, "exit": {"started_ms": 5}}).presence is Presence.ENDED


def test_no_compiler_is_run_for_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """While asyncssh is imported, no compiler is run to find a library that the loader does not know."""
    looked_for: list[str] = []
    monkeypatch.setattr(shutil, "which", looked_for.append)
    with no_compiler_for_libraries():
        assert ctypes.util.find_library("no-such-library") is None
    assert looked_for == []
    ctypes.util.find_library("no-such-library")
    assert "gcc" in looked_for


class EmptyMachine:
    """A porter of a machine that has nothing, and no room."""

    host = "box"

    async def ask(self, *_: bytes, op: str, **_more: Any) -> tuple[dict[str, Any], bytes]:
        return ({"done": False} if op == "restore" else {"missing": [], "has_room": False}), b""


def test_data_that_cannot_reach_a_machine_is_refused_with_the_reason(tmp_path: Path) -> None:
    """That has changed since it was submitted, does not fit, or is gone; a run would record another digest else."""
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "rows.csv"
    file.write_text("1,2")
    inputs = {"x": str(tmp_path / "data")}
    digests = data_digests(inputs, data_seen(tmp_path))
    record = RunRecord("e_1_0000000a", "e", 1, Definition("a.py", inputs=inputs), data=digests)

    def failure() -> str:
        job = Job(RunFolder(tmp_path), record, 1, tmp_path)
        with pytest.raises(EngineFailure) as failed:
            asyncio.run(send_data(cast("Porter", EmptyMachine()), job, "x", print))
        return f"{failed.value.failure.code} {failed.value}"

    assert "TargetUnusable inputs/x takes 0.0 GB, and with the data in use there are 50.0 GB" in failure()
    file.write_text("another")
    assert "InputChanged the input x" in failure()
    shutil.rmtree(tmp_path / "data")
    assert "it is not there any more" in failure()
