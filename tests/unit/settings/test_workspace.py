"""Where the workspace is found and how it is created."""

import os
from pathlib import Path

import pytest

from stoker.errors import InvalidSettings
from stoker.settings import workspace
from stoker.settings.workspace import Workspace


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_WORKSPACE", raising=False)


def test_option_wins_over_variable_and_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--workspace` decides, even with the variable set and a `.stoker` in the current directory."""
    (tmp_path / ".stoker").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "variable"))
    assert Workspace.find(tmp_path / "option").root == tmp_path / "option"


def test_the_variable_wins_over_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STOKER_WORKSPACE decides where there is no option; an empty one counts as unset."""
    (tmp_path / ".stoker").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_WORKSPACE", "elsewhere")
    assert Workspace.find().root == tmp_path / "elsewhere"
    monkeypatch.setenv("STOKER_WORKSPACE", "")
    assert Workspace.find().root == tmp_path / ".stoker"


def test_the_nearest_one_upward_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several `.stoker` folders upward of the current directory the nearest is the workspace."""
    here = tmp_path / "project" / "src"
    here.mkdir(parents=True)
    (tmp_path / ".stoker").mkdir()
    (tmp_path / "project" / ".stoker").mkdir()
    monkeypatch.chdir(here)
    assert Workspace.find().root == tmp_path / "project" / ".stoker"


AZURE = '{"workspace_name": "w"}'


@pytest.mark.parametrize("name", ["config.json", ".azureml/config.json"])
def test_folders_below_a_configuration_share_a_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A new one lies where the nearest `config.json` upward names one on Azure; one that is there is taken."""
    (tmp_path / "project" / "a").mkdir(parents=True)
    (tmp_path / "project" / ".azureml").mkdir()
    (tmp_path / "project" / name).write_text(AZURE)
    monkeypatch.chdir(tmp_path / "project" / "a")
    assert Workspace.find().root == tmp_path / "project" / ".stoker"
    (tmp_path / ".stoker").mkdir()
    assert Workspace.find().root == tmp_path / ".stoker"
    (tmp_path / "project" / "a" / ".stoker").mkdir()
    assert Workspace.find().root == tmp_path / "project" / "a" / ".stoker"


@pytest.mark.parametrize("content", ["{}", "[", "[" * 50_000, '{"workspace_name": 7}', None])
def test_other_configurations_make_no_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """Models have a `config.json` too; a FIFO is not waited for."""
    (tmp_path / "a").mkdir()
    if content is None:
        os.mkfifo(tmp_path / "config.json")
    else:
        (tmp_path / "config.json").write_text(content)
    monkeypatch.chdir(tmp_path / "a")
    assert Workspace.find().root == tmp_path / "a" / ".stoker"


@pytest.mark.parametrize("harm", ["of another user", "not writable"])
def test_a_configuration_of_others_makes_no_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """Nobody else says where models and keys are kept."""
    (tmp_path / "a").mkdir()
    (tmp_path / "config.json").write_text(AZURE)
    monkeypatch.chdir(tmp_path / "a")
    if harm == "not writable":
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / "config.json").stat().st_uid + 1)
        monkeypatch.setattr(workspace, "_OWNERS", frozenset[int]())
    assert Workspace.find().root == tmp_path / "a" / ".stoker"


def test_a_file_named_stoker_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a directory can be the workspace that the search finds."""
    here = tmp_path / "project"
    here.mkdir()
    (here / ".stoker").write_text("not a directory")
    (tmp_path / ".stoker").mkdir()
    monkeypatch.chdir(here)
    assert Workspace.find().root == tmp_path / ".stoker"


def test_finding_creates_nothing_and_creating_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new workspace appears only with `create`: mode 0700, and with its content out of git's sight."""
    monkeypatch.chdir(tmp_path)
    workspace = Workspace.find(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    assert workspace.create() is workspace
    assert workspace.root.stat().st_mode & 0o777 == 0o700
    assert (workspace.root / ".gitignore").read_text() == "*\n"
    assert {workspace.models_dir.name, workspace.keys_dir.name, workspace.run_dir.name} == {
        "models",
        "keys",
        "run",
    }


def test_creating_keeps_existing_files(tmp_path: Path) -> None:
    """`create` changes neither the mode nor the content of an existing directory."""
    tmp_path.chmod(0o750)
    Workspace(tmp_path).create()
    assert tmp_path.stat().st_mode & 0o777 == 0o750
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_running_servers_is_private(tmp_path: Path) -> None:
    """Its mode is 0700 in a workspace that others may read too, and where it was there before with another one."""
    tmp_path.chmod(0o755)
    workspace = Workspace(tmp_path)
    assert workspace.create_run_dir() == workspace.run_dir
    assert workspace.run_dir.stat().st_mode & 0o777 == 0o700
    workspace.run_dir.chmod(0o755)
    assert workspace.create_run_dir().stat().st_mode & 0o777 == 0o700


def test_a_file_cannot_be_the_workspace(tmp_path: Path) -> None:
    """`--workspace` with the path of a file is refused with that path."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InvalidSettings, match=f"{file} is not a directory"):
        Workspace.find(file)


def test_a_strangers_workspace_is_not_taken_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `.stoker` of another user found upward is refused, and accepted when it is named."""
    root = tmp_path / ".stoker"
    root.mkdir()
    monkeypatch.chdir(tmp_path)
    stranger = root.stat().st_uid + 1
    monkeypatch.setattr("stoker.settings.workspace._owner", lambda _: stranger)
    with pytest.raises(InvalidSettings, match=f"belongs to the user with the id {stranger}"):
        Workspace.find()
    assert Workspace.find(root).root == root
