"""`stoker keys`."""

import argparse
import io
import json
import sys
from pathlib import Path

import pytest

from stoker.commands import keys as command
from stoker.errors import InvalidSettings
from stoker.keys.keyring import AdminKey, Keyring
from stoker.keys.verifier import KeyVerifier


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


@pytest.fixture
def keyring(workspace: Path) -> Keyring:
    keyring = Keyring(workspace / "keys", "mnist")
    keyring.ensure()
    return keyring


def test_show_prints_both_keys(workspace: Path, keyring: Keyring, capsys: pytest.CaptureFixture[str]) -> None:
    """The only service need not be named."""
    assert run("show", "--workspace", str(workspace)) == 0
    keys = keyring.show()
    assert (
        capsys.readouterr().out
        == f"service    mnist\nprimary    {keys.primary}\nsecondary  {keys.secondary}\n"
    )


def test_show_prints_json(workspace: Path, keyring: Keyring, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` gives the service and both keys."""
    run("show", "--json", "--name", "mnist", "--workspace", str(workspace))
    keys = keyring.show()
    expected = {"service": "mnist", "primary": keys.primary, "secondary": keys.secondary}
    assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.parametrize("slot", ["primary", "secondary"])
def test_regenerate_prints_the_new_key_alone(
    workspace: Path, keyring: Keyring, capsys: pytest.CaptureFixture[str], slot: str
) -> None:
    """Standard output is the new key, so that a shell can take it; the words go to standard error."""
    old = keyring.show()
    assert run("regenerate", slot, "--workspace", str(workspace)) == 0
    captured = capsys.readouterr()
    new = keyring.show()
    assert captured.out == f"{getattr(new, slot)}\n"
    assert getattr(new, slot) != getattr(old, slot)
    assert f"The {slot} key of service mnist is replaced" in captured.err


def test_regenerate_takes_a_key(workspace: Path, keyring: Keyring) -> None:
    """`--key` gives the new key."""
    run("regenerate", "primary", "--key", "0123456789abcdef", "--workspace", str(workspace))
    assert keyring.show().primary == "0123456789abcdef"


def test_regenerate_reads_a_key(workspace: Path, keyring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--key -` reads it from standard input, without the end of the line."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("fedcba9876543210\n"))
    run("regenerate", "secondary", "--key", "-", "--workspace", str(workspace))
    assert keyring.show().secondary == "fedcba9876543210"


def test_several_services_have_to_be_told_apart(workspace: Path, keyring: Keyring) -> None:
    """With several services and no `--name` the error lists them, and nothing is replaced."""
    Keyring(workspace / "keys", "cifar").ensure()
    before = keyring.show()
    for action in (["show"], ["regenerate", "primary"]):
        with pytest.raises(InvalidSettings, match=r"choose one by --name: .* keys of: cifar, mnist"):
            run(*action, "--workspace", str(workspace))
    run("show", "--name", "cifar", "--workspace", str(workspace))
    assert keyring.show() == before


def test_an_unknown_service(workspace: Path, keyring: Keyring) -> None:
    """A service without keys is refused with the ones that have some."""
    with pytest.raises(InvalidSettings, match=r"service cifar has no keys in .* keys of: mnist"):
        run("show", "--name", "cifar", "--workspace", str(workspace))


def test_an_unknown_service_where_none_has_keys(workspace: Path) -> None:
    """What is missing is said once, and how it comes into being."""
    with pytest.raises(InvalidSettings, match=r"service cifar has no keys: \S+ is empty; keys are created"):
        run("show", "--name", "cifar", "--workspace", str(workspace))


def test_no_keys_at_all(workspace: Path) -> None:
    """Before the first start there are no keys, and looking for them creates nothing."""
    with pytest.raises(
        InvalidSettings, match=r"there are no keys: .* created when a service is first started"
    ):
        run("show", "--workspace", str(workspace))
    assert not workspace.exists()


def test_the_admin_key_is_shown_and_replaced(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no service's, and there is one."""
    with pytest.raises(InvalidSettings, match="there is no admin key"):
        run("show", "admin", "--workspace", str(workspace))
    first = AdminKey(workspace / "keys").ensure()
    assert first.primary == first.secondary
    run("show", "admin", "--workspace", str(workspace))
    run("regenerate", "admin", "--workspace", str(workspace))
    run("show", "admin", "--workspace", str(workspace))
    shown, new, shown_then = capsys.readouterr().out.split()
    assert (shown, new) == (first.primary, shown_then)
    assert new != shown
    with pytest.raises(InvalidSettings, match="there are no keys"):
        run("show", "--workspace", str(workspace))


def test_named_keys_are_added_listed_changed_and_removed(
    workspace: Path, keyring: Keyring, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key alone is printed when it is made, and never again; what is not said stays as it is."""
    where = ("--workspace", str(workspace))
    run("add", "ads", "--models", "mnist,digits", "--expires", "2030-01-31", *where)
    key = capsys.readouterr().out.strip()
    assert KeyVerifier(keyring.keys_dir, "mnist", model="mnist").verify(f"Bearer {key}".encode())
    run("set", "ads", "--expires", "never", "--weight", "3", "--max-tier", "high", *where)
    run("list", "--json", *where)
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "ads",
            "models": ["digits", "mnist"],
            "expires": None,
            "weight": 3.0,
            "max tier": "high",
        }
    ]
    run("list", *where)
    assert capsys.readouterr().out == "ads  models digits mnist, expires any, weight 3.0, max tier high\n"
    run("remove", "ads", *where)
    run("list", "--json", *where)
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    "options", [["--expires", "soon"], ["--models", "no such"], []], ids=["time", "model", "nothing"]
)
def test_what_a_named_key_may_has_to_be_said_rightly(
    workspace: Path, keyring: Keyring, options: list[str]
) -> None:
    """A time that is none, a name that can be none, or no change at all is an error."""
    run("add", "ads", "--workspace", str(workspace))
    with pytest.raises(InvalidSettings):
        run("set", "ads", *options, "--workspace", str(workspace))
