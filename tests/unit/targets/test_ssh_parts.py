"""Parts of the engine for machines by SSH that need no machine."""

import ctypes.util
import shutil
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from stoker.environments.interpreters import Interpreter
from stoker.environments.specification import Specification
from stoker.errors import InvalidSettings
from stoker.targets.definitions import Target
from stoker.targets.engine import EngineFailure, Presence
from stoker.targets.registry import no_compiler_for_libraries
from stoker.targets.sights import sight_of
from stoker.targets.ssh.bootstrap import command, first_line
from stoker.targets.ssh.collecting import checked_entries
from stoker.targets.ssh.environment import choose
from stoker.targets.ssh.sending import listed
from stoker.targets.ssh.settings import SshSettings


def python(minor: int) -> Interpreter:
    return Interpreter(Path(f"/usr/bin/python3.{minor}"), (3, minor, 1))


def asked(specifier: str) -> Specification:
    return Specification(Path("env.yml"), (), SpecifierSet(specifier))


@pytest.mark.parametrize(
    ("specifier", "minor", "noted"),
    [
        ("", 9, False),
        ("==3.11.*", 11, False),
        (">=3.10", 12, False),
        ("==3.7.*", 9, True),
        ("==3.14.*", None, False),
    ],
)
def test_a_python_of_the_machine_is_chosen(specifier: str, minor: int | None, noted: bool) -> None:
    """That of the agent if it fits, else the newest that does, else the nearest newer one with a note."""
    found, note, wanted = choose(asked(specifier), [python(9), python(11), python(12)])
    assert (found and found.version[1], bool(note)) == (minor, noted)
    assert (wanted > 0) == (noted or found is None)


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "link/file", ""])
def test_a_machine_writes_nowhere_else(name: str) -> None:
    """Names that lead out of the folder, or through a link that came with them, are not taken."""
    with pytest.raises(EngineFailure, match="has sent"):
        checked_entries([["l", "link", "/etc"], ["f", name, 1, False]])


def test_links_and_odd_names_are_taken() -> None:
    """A link is only kept, whatever it leads to."""
    entries = [["l", "link", "/etc"], ["d", "deep"], ["f", "deep/new\nline", 1, False]]
    assert checked_entries(entries) == entries


def test_a_folder_is_known_by_its_content(tmp_path: Path) -> None:
    """Equal ones have one digest, wherever they are; each content is listed once."""
    for place in ("one", "two"):
        (tmp_path / place / "deep").mkdir(parents=True)
        for name in ("a", "deep/b"):
            (tmp_path / place / name).write_text("same")
        (tmp_path / place / "link").symlink_to("a")
    one, two = listed(tmp_path / "one"), listed(tmp_path / "two")
    assert one.digest == two.digest
    assert sorted(entry[:2] for entry in one.entries) == [
        ["d", "deep"],
        ["f", "a"],
        ["f", "deep/b"],
        ["l", "link"],
    ]
    assert len(one.paths) == 1
    (tmp_path / "two" / "a").chmod(0o700)
    assert listed(tmp_path / "two").digest != one.digest


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "has no address"),
        ({"address": ""}, "has to be a text"),
        ({"address": "-oProxyCommand=x"}, "is no address"),
        ({"address": "x", "port": 70000}, "port is 70000"),
        ({"address": "x", "username": 7}, "username is 7"),
    ],
)
def test_settings_are_looked_at(tmp_path: Path, settings: dict[str, object], words: str) -> None:
    """What cannot be says which target and which key."""
    with pytest.raises(InvalidSettings, match=words):
        SshSettings.of(Target("vm", "ssh", settings), tmp_path)


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


def test_what_the_agent_says_is_a_sight() -> None:
    """Its lock, its files, and its end."""
    nothing = {"exit": None, "alive": False, "agent": None, "heartbeat": None, "sizes": {}}
    assert sight_of(nothing).presence is Presence.ABSENT
    assert sight_of({**nothing, "agent": {}}).presence is Presence.GONE
    begun = {**nothing, "alive": True, "agent": {"started_ms": 5}, "heartbeat": {"problem": "disk"}}
    assert sight_of(begun).started_ms is None
    assert sight_of({**begun, "sizes": {"log_0.txt": 0}}).started_ms == 5
    assert sight_of(begun).reason == "disk"
    assert sight_of({**begun, "exit": {"started_ms": 5}}).presence is Presence.ENDED


def test_no_compiler_is_run_for_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loader does not know is not looked for by making programs, while asyncssh is imported."""
    looked_for: list[str] = []
    monkeypatch.setattr(shutil, "which", looked_for.append)
    with no_compiler_for_libraries():
        assert ctypes.util.find_library("no-such-library") is None
    assert looked_for == []
    ctypes.util.find_library("no-such-library")
    assert "gcc" in looked_for
