"""`stoker stores` and `stoker datasets`."""

import io
import json
import stat
from pathlib import Path

import pytest

from stoker.cli import main
from stoker.settings.workspace import Workspace
from stoker_runs.launch.inputs import find_input


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "deep/b.csv"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(name)
    return Workspace(tmp_path / "home")


@pytest.mark.parametrize("kind", ["folder", "address"])
def test_files_go_to_a_store_and_come_back(
    tmp_path: Path, workspace: Workspace, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """A folder or one file; present files stay unless they are to be replaced."""
    (tmp_path / "there").mkdir()
    where = tmp_path / "there"
    assert main(["stores", "add", "disk", str(where) if kind == "folder" else where.as_uri()]) == 0
    assert main(["stores", "upload", "disk", "data", "--to", "digits"]) == 0
    assert main(["stores", "upload", "disk", "data/a.csv", "--to", "/digits"]) == 0
    assert main(["stores", "upload", "disk", "data/a.csv"]) == 0
    assert "uploaded 0 files, 1 were there" in capsys.readouterr().out
    assert (where / "digits/deep/b.csv").read_text() == "deep/b.csv"
    assert (where / "a.csv").read_text() == "a.csv"
    assert main(["stores", "download", "disk", "digits", "-o", "copy"]) == 0
    assert "downloaded 2 files\n" in capsys.readouterr().out
    assert (tmp_path / "copy/deep/b.csv").read_text() == "deep/b.csv"
    assert main(["stores", "download", "disk", "digits/a.csv", "-o", "copy", "--overwrite"]) == 0
    assert "downloaded 1 file\n" in capsys.readouterr().out
    for wrong in (["upload", "disk", "none"], ["upload", "disk", "data", "--to", "../up"]):
        assert main(["stores", *wrong]) == 2
    assert main(["stores", "upload", "disc", "data"]) == 2
    assert "did you mean disk" in capsys.readouterr().err
    assert find_input("x", "disk/digits", workspace).endswith("digits")


def test_options_are_kept_for_their_owner(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are in no output; the default is marked."""
    monkeypatch.setattr("sys.stdin", io.StringIO('{"account_name": "a", "account_key": "secret"}'))
    assert main(["stores", "add", "blobs", "az://box/data", "--options", "-"]) == 0
    kept = workspace.root / "stores" / "blobs.secret"
    assert (stat.S_IMODE(kept.stat().st_mode), "secret" in kept.read_text()) == (0o600, True)
    assert main(["stores", "set-default", "blobs"]) == 0
    capsys.readouterr()
    assert main(["stores", "list"]) == 0
    shown = capsys.readouterr().out
    assert "secret" not in shown
    assert main(["stores", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0] == {
        "name": "blobs",
        "where": "az://box/data",
        "default": True,
    }
    assert main(["stores", "set-default", "none"]) == 2
    Path("bad.json").write_text("[1]")
    assert main(["stores", "add", "blobs", "az://box", "--options", "bad.json"]) == 2
    assert "expected a JSON object" in capsys.readouterr().err


def test_data_sets_have_versions(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal places are the same version; others need a version; queries of addresses are in no output."""
    main(["stores", "upload", "workspaceblobstore", "data", "--to", "digits"])
    capsys.readouterr()
    register = ["datasets", "register", "digits"]
    for _ in range(2):
        assert main([*register, "workspaceblobstore/digits", "--description", "Digits."]) == 0
        assert capsys.readouterr().out == "digits:1\n"
    assert find_input("x", "digits", workspace).endswith("digits")
    other = "https://host/digits.csv?sig=secret"
    assert main([*register, other]) == 2
    assert "--new-version" in capsys.readouterr().err
    assert main([*register, other, "--new-version"]) == 0
    for words in (["list"], ["list", "--json"], ["show", "digits"]):
        assert main(["datasets", *words]) == 0
    shown = capsys.readouterr().out
    assert main(["datasets", "show", "digits", "--json"]) == 0
    as_json = capsys.readouterr().out
    assert [one["version"] for one in json.loads(as_json)] == [1, 2]
    shown += as_json
    assert ("secret" in shown, "https://host/digits.csv" in shown, "Digits." in shown) == (False, True, True)
    assert main(["datasets", "register", "more", "nostore/x"]) == 2
    assert main(["datasets", "show", "digit"]) == 2
    assert "did you mean digits" in capsys.readouterr().err
