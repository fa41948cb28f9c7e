"""`stoker keys`."""

import argparse
import io
import json
import sys
from pathlib import Path

import pytest

from stoker.commands import keys as command
from stoker.errors import InvalidSettings
from stoker.keys.callers import CallerBook
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


def test_several_services_without_a_name_are_refused(workspace: Path, keyring: Keyring) -> None:
    """With several services and no `--name` the error lists them, and nothing is replaced."""
    Keyring(workspace / "keys", "cifar").ensure()
    before = keyring.show()
    for action in (["show"], ["regenerate", "primary"]):
        with pytest.raises(InvalidSettings, match=r"for instance by --name cifar: .* keys of: cifar, mnist"):
            run(*action, "--workspace", str(workspace))
    run("show", "--name", "cifar", "--workspace", str(workspace))
    assert keyring.show() == before


def test_an_unknown_service(workspace: Path, keyring: Keyring) -> None:
    """A service without keys is refused with the ones that have some."""
    with pytest.raises(InvalidSettings, match=r"service cifar has no keys in .* keys of: mnist"):
        run("show", "--name", "cifar", "--workspace", str(workspace))


def test_an_unknown_service_where_none_has_keys(workspace: Path) -> None:
    """The message names the missing keys once, and how they are created."""
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
    """The key alone is printed when it is made, and never again; unnamed values stay unchanged."""
    where = ("--workspace", str(workspace))
    run("list", *where)
    assert capsys.readouterr().err == "there are no named keys; stoker keys add NAME makes one\n"
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
            "rows per s": None,
            "device ms per s": None,
            "burst s": None,
        }
    ]
    run("list", *where)
    assert capsys.readouterr().out == "ads  models digits mnist, expires never, weight 3.0, max tier high\n"
    run("set", "ads", "--rows-per-s", "500", "--device-ms-per-s", "200", "--burst-s", "0.5", *where)
    run("set", "ads", "--device-ms-per-s", "none", *where)
    run("list", *where)
    assert capsys.readouterr().out == (
        "ads  models digits mnist, expires never, weight 3.0, max tier high, rows per s 500.0, burst s 0.5\n"
    )
    run("set", "ads", "--rows-per-s", "0", *where)
    assert not CallerBook(keyring.keys_dir).callers()[0].limited
    run("remove", "ads", *where)
    run("list", "--json", *where)
    assert json.loads(capsys.readouterr().out) == []


def test_a_key_that_would_never_be_valid_is_not_made(workspace: Path) -> None:
    """A past date is a slip, and the key would be handed out as valid."""
    with pytest.raises(InvalidSettings, match="--expires 2020-01-31 is past; the key would never be valid"):
        run("add", "ads", "--expires", "2020-01-31", "--workspace", str(workspace))
    assert not CallerBook(workspace / "keys").callers()


def test_models_of_a_key_may_come_after_it(workspace: Path) -> None:
    """Names and patterns are kept; what no name could match is refused."""
    run("add", "ads", "--models", "tomorrow,shop-*", "--workspace", str(workspace))
    assert CallerBook(workspace / "keys").callers()[0].models == {"tomorrow", "shop-*"}
    with pytest.raises(InvalidSettings, match="cannot be a model name"):
        run("set", "ads", "--models", "no:*", "--workspace", str(workspace))


@pytest.mark.parametrize(
    "options", [["--expires", "soon"], ["--models", "no:such"], []], ids=["time", "model", "nothing"]
)
def test_invalid_option_of_a_named_key_is_refused(
    workspace: Path, keyring: Keyring, options: list[str]
) -> None:
    """A bad time, a bad name, or no change at all is an error."""
    run("add", "ads", "--workspace", str(workspace))
    with pytest.raises(InvalidSettings):
        run("set", "ads", *options, "--workspace", str(workspace))
