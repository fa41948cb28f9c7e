"""The versions of the models that settings name, and which of them are loaded first."""

from __future__ import annotations

import argparse
import importlib
import os
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stoker.commands import serve as serve_command
from stoker.errors import InvalidSettings, RepositoryError
from stoker.models.available_models import find_available_models, left_out, tries_earlier
from stoker.models.deployments import resolve
from stoker.models.labels import LABELS_FILE, change_labels, labels_mark, store_canary, stored_labels
from stoker.models.registered_files import source_files
from stoker.models.repository import Repository
from stoker.models.sources import Broken
from stoker.settings.model import ModelSettings
from stoker.settings.server import ServerSettings
from stoker.settings.traffic import Canary
from stoker.settings.workspace import Workspace
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.summary import notes


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base path with the versions 2, 3 and 10."""
    for version in (2, 3, 10):
        write(tmp_path / "digits" / str(version) / "model.onnx")
    return tmp_path / "digits"


def write(path: Path, content: bytes = b"weights") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def loaded(workspace: Workspace, **settings: Any) -> list[str]:
    """Return the versions that a server with this model loads first."""
    with ExitStack() as leases:
        models = (ModelSettings(**settings),)
        deployed = resolve(ServerSettings(models=models), workspace, leases)
    assert (
        [model.slot for model in deployed]
        == [model.number for model in deployed]
        == list(range(len(deployed)))
    )
    return [f"{model.name}:{model.version}" for model in deployed]


@pytest.mark.parametrize(
    ("versions", "labels", "names"),
    [
        (None, None, [10]),
        ("latest:2", None, [3, 10]),
        ("all", None, [2, 3, 10]),
        ((2, 3), None, [2, 3]),
        (None, {"stable": 2}, [2, 10]),
    ],
)
def test_the_policy_and_the_labels_choose_the_loaded_versions(
    workspace: Workspace, base: Path, versions: Any, labels: Any, names: list[int]
) -> None:
    """Versions are ordered by number; one with a label is loaded too."""
    found = loaded(workspace, path=base, versions=versions, labels=labels, name="renamed")
    assert found == [f"renamed:{version}" for version in names]


@pytest.mark.parametrize(
    ("versions", "exit_on_error", "earlier"),
    [
        (None, None, [3, 2]),
        (None, False, [3, 2]),
        (None, True, []),
        ("latest:2", None, [2]),
        ("all", None, []),
        ((10,), None, []),
    ],
)
def test_versions_before_the_newest_take_its_place_unless_versions_are_named(
    workspace: Workspace, base: Path, versions: Any, exit_on_error: bool | None, earlier: list[int]
) -> None:
    """At a start the newest is tried first; with exit_on_error the start ends instead."""
    models = (ModelSettings(path=base, versions=versions),)
    settings = ServerSettings(models=models, exit_on_error=exit_on_error)
    available = find_available_models(settings, workspace)
    assert tries_earlier(settings, available) == bool(earlier)
    assert exit_on_error or available["digits"].earlier == earlier


def test_missing_version_in_the_settings_stops_the_start(workspace: Workspace, base: Path) -> None:
    """A missing version or label of the settings stops the start; one of the label file does not."""
    with pytest.raises(InvalidSettings, match="digits has no version 4; it has 2, 3, 10"):
        loaded(workspace, path=base, versions=(2, 4))
    with pytest.raises(InvalidSettings, match="digits has no version 5"):
        loaded(workspace, path=base, labels={"stable": 5})
    change_labels(base, {"stable": 5, "canary": 3})
    assert loaded(workspace, path=base, labels={"canary": 2}) == ["digits:3", "digits:10"]
    (base / LABELS_FILE).write_text("[1]")
    with pytest.raises(RepositoryError, match="cannot be read as labels"):
        loaded(workspace, path=base)


def test_a_label_ahead_of_its_version_keeps_its_earlier_version(workspace: Workspace, base: Path) -> None:
    """The earlier version is loaded; labels that do not wait, and deleted versions, do not count."""
    change_labels(base, {"stable": 99, "canary": 10, "lost": 98})
    settings = ServerSettings(models=(ModelSettings(path=base),))
    earlier = {"digits": {"stable": 3, "canary": 2, "lost": 1}, "other": {"stable": 2}}
    with ExitStack() as leases:
        deployed = resolve(settings, workspace, leases, earlier_labels=earlier)
    catalogue = Catalogue(deployed, find_available_models(settings, workspace, earlier))
    assert [model.version for model in deployed] == [3, 10]
    assert catalogue.labels == {"digits": {"stable": 3, "canary": 10}}
    assert catalogue.models["digits"].chosen == {10}


def test_a_version_without_a_model_is_an_error_only_if_it_is_chosen(workspace: Workspace, base: Path) -> None:
    """The version may still be written; by default the newest one is chosen."""
    (base / "11").mkdir()
    with pytest.raises(RepositoryError, match="version 11 of digits"):
        loaded(workspace, path=base)
    assert loaded(workspace, path=base, versions=(10,)) == ["digits:10"]
    entry = find_available_models(ServerSettings(models=(ModelSettings(path=base),)), workspace)["digits"]
    assert (entry.versions, list(entry.broken)) == ((2, 3, 10), [11])


def test_broken_models_do_not_stop_the_others(workspace: Workspace, base: Path, tmp_path: Path) -> None:
    """One model is missing, one has changed since its registration, one lacks a version; the others are loaded."""
    (base / "11").mkdir()
    write(tmp_path / "net.onnx")
    registered = Repository(workspace.models_dir).register(
        "changed", tmp_path / "net.onnx", now=datetime.now(UTC), framework="onnx"
    )
    registered.path.chmod(0o644)
    registered.path.write_bytes(b"others")
    entries = (
        ModelSettings(path=base),
        ModelSettings(path=tmp_path / "gone" / "model.onnx"),
        ModelSettings(registered="changed"),
        ModelSettings(registered="unknown:4"),
        ModelSettings(path=tmp_path / "net.onnx"),
        ModelSettings(path=tmp_path / "net.onnx", name="other", versions=(5,)),
    )
    broken: Broken = {}
    with ExitStack() as leases:
        deployed = resolve(ServerSettings(models=entries), workspace, leases, broken)
    assert [model.name for model in deployed] == ["net"]
    words = {("digits", 11): "holds no model", ("gone", 1): "does not exist", ("changed", 1): "changed",
             ("unknown", 4): "no model 'unknown'", ("other", 5): "has no version 5"}  # fmt: skip
    assert set(broken) == set(words)
    assert all(word in str(broken[key]) for key, word in words.items()), broken
    with ExitStack() as leases, pytest.raises(RepositoryError, match="does not exist"):
        resolve(ServerSettings(models=entries), workspace, leases)


@pytest.mark.parametrize(("exit_on_error", "hidden"), [(None, True), (True, True), (False, False)])
def test_a_single_missing_model_is_an_error(
    workspace: Workspace, tmp_path: Path, exit_on_error: bool | None, hidden: bool
) -> None:
    """It is no error if the server shall start without it."""
    settings = ServerSettings(
        models=(ModelSettings(path=tmp_path / "net.onnx"),), exit_on_error=exit_on_error
    )
    if hidden:
        with pytest.raises(RepositoryError, match="does not exist"):
            find_available_models(settings, workspace)
        return
    entry = find_available_models(settings, workspace)["net"]
    with pytest.raises(RepositoryError, match="does not exist"):
        entry.source(1)


def test_models_that_only_a_script_can_load_are_named(workspace: Workspace, tmp_path: Path) -> None:
    """Without named models the registered ones are served; those that only a script can load are listed."""
    repository = Repository(workspace.models_dir)
    write(tmp_path / "script" / "score.py")
    write(tmp_path / "weights" / "model.pkl")
    repository.register("script", tmp_path / "script", now=datetime(2026, 10, 18, tzinfo=UTC))
    repository.register(
        "weights", tmp_path / "weights", now=datetime(2026, 10, 18, tzinfo=UTC), framework="files"
    )
    assert [*find_available_models(ServerSettings(), workspace)] == ["script"]
    assert left_out(ServerSettings(), workspace) == ["weights"]
    named = ServerSettings(models=(ModelSettings(registered="script"),))
    assert left_out(named, workspace) == []
    assert notes(ServerSettings(unknown_variables=("STOKER_X is no setting",)), workspace) == [
        "STOKER_X is no setting",
        "weights is registered and not served: an entry script has to load it (--use-model)",
    ]


def test_registered_models(workspace: Workspace, base: Path) -> None:
    """A number in the reference chooses this version only; without one all versions are available."""
    repository = Repository(workspace.models_dir)
    for _ in range(3):
        repository.register("digits", base / "2" / "model.onnx", now=datetime(2026, 10, 18, tzinfo=UTC))
    change_labels(workspace.models_dir / "digits", {"stable": 2})
    assert loaded(workspace, registered="digits") == ["digits:2", "digits:3"]
    assert loaded(workspace, registered="digits:1") == ["digits:1"]
    with pytest.raises(InvalidSettings, match="digits:1 names a version already"):
        loaded(workspace, registered="digits:1", versions="all")


def test_fingerprints_change_with_the_files(workspace: Workspace, base: Path) -> None:
    """Each version has its own; a configuration beside the versions is part of all."""

    def look() -> list[str]:
        entry = find_available_models(ServerSettings(models=(ModelSettings(path=base),)), workspace)["digits"]
        return [entry.source(version).fingerprint() for version in entry.versions]

    before = look()
    assert look() == before
    os.utime(base / "3" / "model.onnx", ns=(1, 1))
    write(base / "10" / "model.onnx.data")
    after = look()
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, False]
    (base / "config.pbtxt").write_text("max_batch_size: 4")
    assert all(old != new for old, new in zip(after, look(), strict=True))


def test_folders_may_be_deeper_than_calls_can_be(workspace: Workspace, base: Path) -> None:
    """A file far below belongs to its version; folders of registered models are bounded."""
    folders = [base / "3"]
    for _ in range(1100):
        folders.append(folders[-1] / "d")
        folders[-1].mkdir()
    (folders[-1] / "table.txt").touch()
    try:
        server = ServerSettings(models=(ModelSettings(path=base),))
        source = find_available_models(server, workspace)["digits"].source(3)
        before = source.fingerprint()
        (folders[-1] / "table.txt").write_text("changed")
        assert source.fingerprint() != before
        with pytest.raises(RepositoryError, match="lies more than 200 folders deep"):
            source_files(base / "3")
    finally:
        (folders[-1] / "table.txt").unlink()
        # Functions that remove whole trees recurse.
        for folder in reversed(folders[1:]):
            folder.rmdir()


def test_only_python_files_of_a_script_count(workspace: Workspace, tmp_path: Path) -> None:
    """A script may write other files beside itself while it serves."""
    path = tmp_path / "script" / "score.py"
    write(path, b"def init(): ...\ndef run(raw_data): ...\n")

    def look() -> str:
        entry = find_available_models(ServerSettings(models=(ModelSettings(path=path),)), workspace)["script"]
        return entry.source(1).fingerprint()

    before = look()
    write(path.with_name("cache.db"))
    assert look() == before
    write(path.with_name("helper.py"))
    assert look() != before


def test_a_replaced_labels_file_is_noticed(base: Path) -> None:
    """Its entry in the folder shows it, without reading the file."""
    missing = labels_mark(base)
    change_labels(base, {"stable": 3})
    first = labels_mark(base)
    assert change_labels(base, {"canary": 10}, ["stable"]) == stored_labels(base) == {"canary": 10}
    marks = {missing, first, labels_mark(base)}
    store_canary(base, Canary({"canary": 1}))
    assert len({*marks, labels_mark(base)}) == 4, "weights are followed as labels are"


def test_the_command_line_sets_the_policy(base: Path, tmp_path: Path) -> None:
    """Options are for PATH and --model, or the default of all models."""
    parser = argparse.ArgumentParser()
    serve_command.add_arguments(parser)
    workspace = ["--workspace", str(tmp_path / "workspace"), "--versions", "latest:2"]
    named = serve_command.serve_settings(parser.parse_args([str(base), *workspace]))
    unnamed = serve_command.serve_settings(parser.parse_args(workspace))
    for settings in (named, unnamed):
        assert settings.model_defaults.versions == "latest:2"
    with pytest.raises(InvalidSettings, match="versions must be latest, latest:N, all"):
        serve_command.serve_settings(parser.parse_args([*workspace, "--versions", "newest"]))


@pytest.mark.parametrize(
    "place",
    [
        "stoker.models.layouts.read_triton_config",
        "stoker.models.layouts.detect",
        "stoker.models.deployments.check_settings",
    ],
)
def test_unexpected_error_of_one_model_breaks_that_model_alone(
    tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """After any error of reading its files, the other models are served."""
    for name in ("bad", "good"):
        write(tmp_path / "repository" / name / "1" / "model.onnx")
    module, _, function = place.rpartition(".")
    usual = getattr(importlib.import_module(module), function)

    def fail(*arguments: Any) -> Any:
        if "bad" in str(arguments):
            raise ZeroDivisionError("nobody has thought of this")
        return usual(*arguments)

    monkeypatch.setattr(place, fail)
    broken: Broken = {}
    models = (ModelSettings(path=tmp_path / "repository"),)
    with ExitStack() as leases:
        served = resolve(ServerSettings(models=models), workspace, leases, broken)
    assert [model.name for model in served] == ["good"]
    assert "ZeroDivisionError: nobody has thought of this" in str(broken["bad", 1])
