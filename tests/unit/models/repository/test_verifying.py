"""Registered versions that have changed since, and their deletion."""

import errno
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.unit.models.repository.conftest import NOW, contents_of, registered_script

from stoker.errors import CorruptModel, ModelInUse, OperatorError, UnknownModel
from stoker.models.registered import Registered
from stoker.models.repository import Repository
from stoker.system.durable import replace_file


def test_a_changed_file_is_named(repository: Repository, script: Path) -> None:
    """A file with other content of the same length is found by its checksum."""
    registered = registered_script(repository, script)
    weights = registered.files_dir / "weights.bin"
    weights.chmod(0o644)
    weights.write_bytes(bytes(999) + b"\1")
    with pytest.raises(CorruptModel, match=r"digits:1: the file weights\.bin .* was changed"):
        registered.verify()


def test_a_file_of_another_length_is_named(repository: Repository, script: Path) -> None:
    """A cut file is found."""
    registered = registered_script(repository, script)
    os.truncate(registered.files_dir / "weights.bin", 999)
    with pytest.raises(CorruptModel, match=r"weights\.bin .* was changed"):
        registered.verify()


def test_a_link_in_place_of_a_file_is_named(repository: Repository, script: Path) -> None:
    """A link counts as changed even if the file that it leads to has the right content."""
    registered = registered_script(repository, script)
    weights = registered.files_dir / "weights.bin"
    weights.unlink()
    weights.symlink_to(script / "weights.bin")
    with pytest.raises(CorruptModel, match=r"weights\.bin .* was changed"):
        registered.verify()


def test_a_removed_file_is_named(repository: Repository, script: Path) -> None:
    """A file that is gone is found, in subfolders too."""
    registered = registered_script(repository, script)
    (registered.files_dir / "network" / "layers.py").unlink()
    with pytest.raises(CorruptModel, match=r"the file network/layers\.py .* is gone"):
        registered.verify()


def test_an_added_file_is_named(repository: Repository, script: Path) -> None:
    """A file that was not registered is found; Python's caches are no part of the model."""
    registered = registered_script(repository, script)
    cache = registered.files_dir / "network" / "__pycache__"
    cache.mkdir()
    (cache / "layers.cpython-311.pyc").touch()
    registered.verify()
    (registered.files_dir / "network" / "evil.py").touch()
    with pytest.raises(CorruptModel, match=r"the file network/evil\.py was added"):
        registered.verify()


def test_caches_are_not_registered(repository: Repository, script: Path) -> None:
    """Python's caches in the source are left out."""
    (script / "__pycache__").mkdir()
    (script / "__pycache__" / "score.pyc").touch()
    assert "__pycache__" not in contents_of(registered_script(repository, script).files_dir)


def test_large_models_are_verified_on_several_threads(
    repository: Repository, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit the files are read in parallel, with the same results."""
    monkeypatch.setattr("stoker.models.registered_files._PARALLEL_FROM_BYTES", 10)
    monkeypatch.setattr("stoker.models.registered_files.os.cpu_count", lambda: 4)
    for number in range(20):
        (script / f"part-{number}").write_bytes(bytes([number]) * 100)
    registered = registered_script(repository, script)
    registered.verify()
    part = registered.files_dir / "part-7"
    part.chmod(0o644)
    part.write_bytes(bytes(100))
    with pytest.raises(CorruptModel, match=r"part-7 .* was changed"):
        registered.verify()


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"null", b"\xff", b'{"name": "digits"}', b"[" * 100_000, None],
    ids=["empty", "no keys", "a list", "null", "no text", "one key", "too deep", "gone"],
)
def test_a_broken_manifest_is_refused(repository: Repository, script: Path, content: bytes | None) -> None:
    """A version without a readable manifest is corrupt, and can still be deleted."""
    manifest = registered_script(repository, script).folder / "manifest.json"
    manifest.unlink()
    if content is not None:
        manifest.write_bytes(content)
    with pytest.raises(CorruptModel, match=r"digits:1: the file manifest\.json"):
        repository.get("digits")
    repository.delete("digits", 1)
    assert repository.list() == []


@pytest.mark.parametrize("name", [each.name for each in fields(Registered) if each.name != "folder"])
def test_a_manifest_with_a_value_of_another_kind_is_refused(
    repository: Repository, script: Path, name: str
) -> None:
    """Readers can rely on the types of a manifest."""
    manifest = registered_script(repository, script).folder / "manifest.json"
    replace_file(manifest, json.dumps({**json.loads(manifest.read_bytes()), name: [1.5]}).encode())
    with pytest.raises(CorruptModel, match=r"digits:1: the file manifest\.json"):
        repository.get("digits")


def test_unreadable_version_is_listed_apart(repository: Repository, script: Path) -> None:
    """A caller that passes `broken` gets the other versions; without it the first fault is raised."""
    for _ in range(2):
        registered = registered_script(repository, script)
    repository.register("letters", script, now=NOW)
    replace_file(registered.folder / "manifest.json", b"{")
    broken: dict[tuple[str, int], OperatorError] = {}
    assert [model.reference for model in repository.list(broken=broken)] == ["digits:1", "letters:1"]
    assert list(broken) == [("digits", 2)]
    assert "delete the version (stoker models delete digits:2)" in str(broken["digits", 2])
    with pytest.raises(CorruptModel, match="digits:2"):
        repository.list()


@pytest.mark.parametrize(
    "changed",
    [
        {"entry": "../../../../evil.py"},
        {"entry": "/evil.py"},
        {"entry": "evil.py"},
        {"entry": "network/../../../evil.py"},
        {"files": {"../../evil.py": {"sha256": "0", "size_bytes": 1}}},
        {"files": {}},
    ],
)
def test_a_manifest_that_leads_out_of_its_folder_is_refused(
    repository: Repository, script: Path, changed: dict[str, Any]
) -> None:
    """The entry is a file with a checksum, also in a manifest without its own checksum."""
    manifest = registered_script(repository, script).folder / "manifest.json"
    content = {**json.loads(manifest.read_bytes()), **changed}
    del content["checksum"]
    replace_file(manifest, json.dumps(content).encode())
    with pytest.raises(CorruptModel, match=r"digits:1: the file manifest\.json .* is missing or malformed"):
        repository.get("digits")


def test_a_changed_manifest_is_refused(repository: Repository, script: Path) -> None:
    """A manifest has its own checksum; the first manifests had none."""
    registered = registered_script(repository, script)
    manifest = registered.folder / "manifest.json"
    content = json.loads(manifest.read_bytes())
    replace_file(manifest, json.dumps({**content, "framework": "files"}).encode())
    with pytest.raises(
        CorruptModel, match=r"digits:1: the file manifest\.json .* was changed after registration"
    ):
        repository.get("digits")
    del content["checksum"]
    replace_file(manifest, json.dumps(content, indent=4).encode())
    assert repository.get("digits") == registered


def test_a_version_without_manifest_and_lease_can_be_deleted(repository: Repository, script: Path) -> None:
    """The message of its error says to delete it, so that has to work."""
    folder = registered_script(repository, script).folder
    for name in ("manifest.json", ".lease"):
        (folder / name).unlink()
    repository.delete("digits", 1)
    assert repository.versions("digits") == []


def test_a_renamed_version_is_refused(repository: Repository, script: Path) -> None:
    """A version's folder moved to another number is not that version."""
    registered = registered_script(repository, script)
    registered.folder.rename(registered.folder.with_name("7"))
    with pytest.raises(CorruptModel, match="has the files of digits:1"):
        repository.get("digits")


def test_deleting_an_unknown_model_or_version_is_an_error(repository: Repository, onnx: Path) -> None:
    """The errors are those of reading."""
    with pytest.raises(UnknownModel, match="no model 'mnist'"):
        repository.delete("mnist", 1)
    repository.register("mnist", onnx, now=NOW)
    with pytest.raises(UnknownModel, match="has no version 2"):
        repository.delete("mnist", 2)


def test_deleting_removes_the_files(repository: Repository, script: Path) -> None:
    """Nothing of a deleted version is left."""
    registered_script(repository, script)
    repository.delete("digits", 1)
    assert contents_of(repository.models_dir) == [".staging", "digits", "digits/.last_version"]


def test_a_served_version_is_not_deleted(repository: Repository, script: Path) -> None:
    """While a process holds the version it stays, unless deletion is forced; the holder goes on."""
    registered = registered_script(repository, script)
    with registered.hold(), registered.hold():
        with pytest.raises(ModelInUse, match="digits:1 is being served"):
            repository.delete("digits", 1)
        registered.verify()
        repository.delete("digits", 1, force=True)
    assert repository.list() == []


def test_a_released_version_can_be_deleted(repository: Repository, script: Path) -> None:
    """The end of the last hold frees the version."""
    registered = registered_script(repository, script)
    with registered.hold():
        pass
    repository.delete("digits", 1)
    with pytest.raises(UnknownModel, match="it was deleted"), registered.hold():
        pytest.fail("a deleted version was held")


def test_a_copied_version_gets_its_lease(repository: Repository, script: Path) -> None:
    """`stoker models push` does not send the lease file; the first process that holds the copy makes it."""
    registered = registered_script(repository, script)
    (registered.folder / ".lease").unlink()
    with registered.hold(), pytest.raises(ModelInUse):
        repository.delete("digits", 1)


def test_a_version_without_a_lease_file_is_an_error_if_it_cannot_be_made(
    repository: Repository, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a read-only file system the error names the file, and does not say that the version was deleted."""
    registered = registered_script(repository, script)
    (registered.folder / ".lease").unlink()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(CorruptModel, match=r"the file \.lease .* cannot be made"), registered.hold():
        pytest.fail("held without a lease")
