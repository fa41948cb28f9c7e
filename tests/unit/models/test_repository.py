"""Registered models: atomic registration, immutable versions, checksums, deletion."""

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PROGRAM_S

from stoker.errors import (
    CorruptModel,
    InvalidSettings,
    ModelInUse,
    OperatorError,
    RepositoryError,
    UnknownModel,
)
from stoker.models import registered
from stoker.models.frameworks import Detected
from stoker.models.registered import _KINDS, Registered
from stoker.models.repository import Repository
from stoker.settings.names import (
    checked_name,
    checked_service,
    is_name,
    is_service_name,
    name_from_file,
    parse_reference,
)
from stoker.system.durable import replace_file
from stoker_run.trees import remove_tree

NOW = datetime(2026, 10, 18, 12, 30, tzinfo=UTC)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "workspace" / "models")


@pytest.fixture
def onnx(tmp_path: Path) -> Path:
    path = tmp_path / "mnist.onnx"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A folder with an entry script, a module in a subfolder, weights and an empty folder."""
    folder = tmp_path / "digits"
    (folder / "network").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "score.py").write_text("def init(): ...\n")
    (folder / "network" / "layers.py").write_text("LAYERS = 3\n")
    (folder / "weights.bin").write_bytes(bytes(1000))
    return folder


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != ".lock")


def test_registering_a_file(repository: Repository, onnx: Path) -> None:
    """A file becomes version 1 with everything that the manifest promises."""
    registered = repository.register(
        "mnist",
        onnx,
        now=NOW.astimezone(timezone(timedelta(hours=2))),
        description="softmax",
        tags={"team": "vision"},
        signature={"inputs": [], "outputs": []},
    )
    assert registered.reference == "mnist:1"
    assert registered.framework == "onnx"
    assert registered.path.read_bytes() == b"weights"
    assert registered.path.name == "mnist.onnx"
    manifest = json.loads((registered.folder / "manifest.json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", manifest.pop("checksum"))
    assert manifest == {
        "name": "mnist",
        "version": 1,
        "framework": "onnx",
        "entry": "mnist.onnx",
        "signature": {"inputs": [], "outputs": []},
        "files": {
            "mnist.onnx": {
                "sha256": "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c",
                "size_bytes": 7,
            }
        },
        "tags": {"team": "vision"},
        "description": "softmax",
        "created_at": "2026-10-18T12:30:00Z",
        "source": "mnist.onnx",
        "image": None,
        "properties": {},
    }
    assert repository.get("mnist") == registered


def test_registering_a_folder(repository: Repository, script: Path) -> None:
    """A folder is copied whole, and its entry script is what the runtime loads."""
    registered = repository.register("digits", script, now=NOW)
    assert registered.framework == "script"
    assert registered.path == registered.files_dir / "score.py"
    assert everything_in(registered.files_dir) == everything_in(script)
    assert registered.size_bytes == sum(path.stat().st_size for path in script.rglob("*") if path.is_file())
    registered.verify()


def test_files_are_read_only_and_keep_the_execute_bit(repository: Repository, script: Path) -> None:
    """Nobody writes to a registered file by accident."""
    tool = script / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    registered = repository.register("digits", script, now=NOW)
    assert (registered.files_dir / "score.py").stat().st_mode & 0o777 == 0o444
    assert (registered.files_dir / "tool").stat().st_mode & 0o777 == 0o555


def test_the_source_can_be_changed_afterwards(repository: Repository, onnx: Path) -> None:
    """A registered version is a copy: what happens to its source does not matter."""
    registered = repository.register("mnist", onnx, now=NOW)
    onnx.write_bytes(b"other weights")
    registered.verify()
    assert repository.get("mnist").path.read_bytes() == b"weights"


def test_weights_beside_an_onnx_file_come_along(repository: Repository, onnx: Path) -> None:
    """External data under the names that exporters use belongs to the model, other neighbours do not."""
    for name in ("mnist.onnx.data", "mnist.onnx_data", "other.onnx", "mnist.txt"):
        (onnx.parent / name).write_bytes(b"data")
    registered = repository.register("mnist", onnx, now=NOW)
    assert everything_in(registered.files_dir) == ["mnist.onnx", "mnist.onnx.data", "mnist.onnx_data"]


def test_versions_count_up_and_are_not_reused(repository: Repository, onnx: Path) -> None:
    """The number of a deleted version is not given out again, even when it was the only one."""
    for expected in (1, 2, 3):
        assert repository.register("mnist", onnx, now=NOW).version == expected
    repository.delete("mnist", 3)
    repository.delete("mnist", 1)
    assert repository.register("mnist", onnx, now=NOW).version == 4
    repository.delete("mnist", 2)
    repository.delete("mnist", 4)
    assert repository.list() == []
    assert repository.register("mnist", onnx, now=NOW).version == 5


def test_listing(repository: Repository, onnx: Path, script: Path) -> None:
    """Models are listed by name, then by the number of the version, and nothing else in the folder is."""
    assert repository.list() == []
    for _ in range(11):
        repository.register("mnist", onnx, now=NOW)
    repository.register("digits", script, now=NOW)
    (repository.models_dir / "lost+found").mkdir()
    (repository.models_dir / "notes.txt").touch()
    assert [model.reference for model in repository.list()] == [
        "digits:1",
        *(f"mnist:{number}" for number in range(1, 12)),
    ]
    assert [model.reference for model in repository.list("digits")] == ["digits:1"]


def test_references(repository: Repository, onnx: Path) -> None:
    """`NAME` means the latest version by number, `NAME:VERSION` that one; errors name the others."""
    for _ in range(10):
        repository.register("mnist", onnx, now=NOW)
    assert repository.resolve("mnist").version == 10
    assert repository.resolve("mnist:9").version == 9
    repository.delete("mnist", 5)
    with pytest.raises(UnknownModel, match="mnist has no version 5; it has 1, 2, 3, 4, 6"):
        repository.resolve("mnist:5")
    with pytest.raises(UnknownModel, match=r"no model 'mnits' is registered .* registered: mnist"):
        repository.resolve("mnits")


name_characters = st.sampled_from("abzABZ019._-")
names = st.builds(
    lambda first, rest: first + rest, st.sampled_from("aZ09"), st.text(name_characters, max_size=99)
)


@given(name=names, version=st.none() | st.integers(1, 10**17))
def test_every_valid_reference_round_trips(name: str, version: int | None) -> None:
    """What is printed as NAME or NAME:VERSION is read back as the same."""
    assert parse_reference(name if version is None else f"{name}:{version}") == (name, version)


@given(name=st.text(max_size=110))
def test_a_name_is_a_plain_file_name(name: str) -> None:
    """Whatever passes as a name can be neither a path, nor hidden, nor longer than 100 characters."""
    if is_name(name):
        assert checked_name(name) == name
        assert Path("models", name).name == name
        assert name.isascii()
        assert not name.startswith(".")
        assert len(name) <= 100
    else:
        with pytest.raises(InvalidSettings, match="cannot be a model name"):
            checked_name(name)


@given(name=st.text(max_size=110) | st.text(alphabet="aé .-(ß", max_size=110))
def test_a_name_of_a_service_is_a_file_name_and_a_part_of_a_path(name: str) -> None:
    """It needs no quotes within quotes, and has room for endings in a file name."""
    if is_service_name(name):
        assert Path("keys", f"{name}.signing").name == f"{name}.signing"
        assert len(f"{name}.sample_input.json".encode()) < 255
        assert name.isprintable()
        assert name == name.strip(" .-") or name[-1] in ".-"
        assert not set(name).intersection("/\\:,;'\"%<>{}[]")
    else:
        assert not is_name(name)
        with pytest.raises(InvalidSettings, match="cannot be a service name"):
            checked_service(name, "service")


@pytest.mark.parametrize(
    "name", ["my model (1)", "größe+2", "模型", "a.b-c_d", "e\u0301te\u0301", "9 #1 & co!"]
)
def test_names_of_folders_are_names_of_services(name: str) -> None:
    """Those that people give to copies, and in their own script."""
    assert checked_service(name) == name


@given(stem=st.text(max_size=150))
def test_every_file_name_gives_a_valid_name(stem: str) -> None:
    """A name made of a file name is valid, and a valid one is kept but for trailing punctuation."""
    name = name_from_file(stem)
    assert is_name(name)
    assert name_from_file(name) == name


@pytest.mark.parametrize(
    "reference", ["", ":1", "mnist:", "mnist:0", "mnist:01", "mnist:-1", "mnist:x", "a:1:2", "mnist:١"]
)
def test_malformed_references_are_refused(reference: str) -> None:
    """A version is a number from 1 up in plain digits."""
    with pytest.raises(InvalidSettings):
        parse_reference(reference)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".staging", "a b", "x" * 101])
def test_registering_under_an_invalid_name(repository: Repository, onnx: Path, name: str) -> None:
    """An invalid name is refused before anything is written."""
    with pytest.raises(InvalidSettings, match="cannot be a model name"):
        repository.register(name, onnx, now=NOW)
    assert not repository.models_dir.exists()


def test_a_time_without_zone_is_a_mistake(repository: Repository, onnx: Path) -> None:
    """A naive time would be ambiguous in the manifest."""
    with pytest.raises(ValueError, match="zone"):
        repository.register("mnist", onnx, now=datetime(2026, 1, 1))


def test_a_failed_copy_leaves_nothing(repository: Repository, script: Path) -> None:
    """When the copy fails half-way the repository is as before, and the error says what failed."""

    def full(copied_bytes: int, total_bytes: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(RepositoryError, match=r"digits cannot be registered .*No space left"):
        repository.register("digits", script, now=NOW, progress=full)
    assert everything_in(repository.models_dir) == [".staging"]


def test_progress_counts_every_byte(repository: Repository, script: Path) -> None:
    """The reports rise to the size of all files."""
    reports: list[tuple[int, int]] = []
    registered = repository.register("digits", script, now=NOW, progress=lambda *sizes: reports.append(sizes))
    assert reports == sorted(reports)
    assert reports[-1] == (registered.size_bytes, registered.size_bytes)


# Links


def test_links_inside_become_copies(repository: Repository, script: Path) -> None:
    """A link to a file or folder of the source is followed."""
    (script / "latest.bin").symlink_to("weights.bin")
    (script / "same").symlink_to(script / "network", target_is_directory=True)
    registered = repository.register("digits", script, now=NOW)
    assert not any(path.is_symlink() for path in registered.files_dir.rglob("*"))
    assert (registered.files_dir / "latest.bin").read_bytes() == bytes(1000)
    assert (registered.files_dir / "same" / "layers.py").read_text() == "LAYERS = 3\n"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("/etc/hostname", "leads out of the model's folder"),
        ("../mnist.onnx", "leads out of the model's folder"),
        ("absent", "leads nowhere"),
        ("link", "leads nowhere"),
        (".", "leads to a folder that it lies in"),
    ],
)
def test_other_links_are_refused(
    repository: Repository, script: Path, onnx: Path, target: str, problem: str
) -> None:
    """A link out of the source, to nothing or in a circle is refused with its path."""
    (script / "link").symlink_to(target)
    with pytest.raises(RepositoryError, match=f"the link {script}/link {problem}"):
        repository.register("digits", script, now=NOW)
    assert repository.list() == []


def test_a_link_to_the_source_itself_is_followed(repository: Repository, script: Path, onnx: Path) -> None:
    """The operator may name the source by a link; a file keeps the link's name."""
    (script.parent / "current").symlink_to(script)
    (script.parent / "current.onnx").symlink_to(onnx)
    assert repository.register("digits", script.parent / "current", now=NOW).source == "digits"
    registered = repository.register("mnist", script.parent / "current.onnx", now=NOW)
    assert registered.path.name == "current.onnx"
    registered.verify()


@pytest.mark.parametrize("special", ["/dev/zero", "pipe"])
@pytest.mark.parametrize("role", ["model", "weights", "sample"])
def test_a_single_path_that_is_no_file_is_refused(
    repository: Repository, onnx: Path, tmp_path: Path, special: str, role: str
) -> None:
    """A device has no end and a pipe waits for its other one: neither is read, whatever it is to be."""
    os.mkfifo(tmp_path / "pipe")
    link = onnx.with_name(onnx.name + ".data") if role == "weights" else tmp_path / "link.bin"
    os.mkfifo(link) if role == "weights" and special == "pipe" else link.symlink_to(special)
    with pytest.raises(RepositoryError, match=r"neither a file nor a folder|is not a file|leads out of"):
        repository.register(
            "odd",
            link if role == "model" else onnx,
            now=NOW,
            framework="files",
            sample=link if role == "sample" else None,
        )
    assert repository.list() == []


def test_weights_are_taken_as_a_folder_is(repository: Repository, onnx: Path) -> None:
    """Links to weights that lie beside the file are followed, those that lead away are not."""
    weights = onnx.with_name(onnx.name + ".data")
    (onnx.parent / "beside").write_bytes(b"weights")
    weights.symlink_to("beside")
    registered = repository.register("mnist", onnx, now=NOW)
    assert (registered.files_dir / weights.name).read_bytes() == b"weights"
    weights.unlink()
    weights.symlink_to("/etc/hostname")
    with pytest.raises(RepositoryError, match="leads out of the model's folder"):
        repository.register("mnist", onnx, now=NOW)


def test_a_model_that_does_not_fit_is_refused_before_it_is_copied(
    repository: Repository, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is not filled by a copy that cannot end; a sparse file counts for what it takes."""
    os.truncate(script / "weights.bin", 1 << 40)
    monkeypatch.setattr(registered, "copy_regular", lambda *_, **__: pytest.fail("nothing is to be copied"))
    (script / "network" / "large").write_bytes(bytes(10_000))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=4096))
    with pytest.raises(RepositoryError, match="has room for 0 MB; make room"):
        repository.register("digits", script, now=NOW)


def test_sparse_files_stay_sparse(repository: Repository, script: Path) -> None:
    """Holes take no room in the copy, and the copy is the same bytes."""
    with (script / "weights.bin").open("r+b") as file:
        file.truncate(64 << 20)
        file.seek(40 << 20)
        file.write(b"numbers")
    registered = repository.register("digits", script, now=NOW)
    copy = registered.files_dir / "weights.bin"
    registered.verify()
    assert copy.stat().st_size == 64 << 20
    assert copy.stat().st_blocks * 512 < 4 << 20


@pytest.mark.parametrize("change", ["grows", "shrinks", "is written over"])
def test_a_file_that_changes_meanwhile_is_told(repository: Repository, script: Path, change: str) -> None:
    """A copy of two moments is no model; one that grows is not followed to its end."""
    weights = script / "weights.bin"
    weights.write_bytes(bytes(3 << 20))
    os.utime(weights, (1, 1))

    def changing(copied_bytes: int, _: int) -> None:
        if 1 << 20 <= copied_bytes < 2 << 20:
            match change:
                case "grows":
                    os.truncate(weights, 1 << 40)
                case "shrinks":
                    os.truncate(weights, 1 << 20)
                case "is written over":
                    os.utime(weights, (2, 2))

    with pytest.raises(RepositoryError, match=r"weights.bin has changed while it was copied"):
        repository.register("digits", script, now=NOW, progress=changing)
    assert everything_in(repository.models_dir) == [".staging"]


def test_folders_without_end_are_refused(repository: Repository, script: Path) -> None:
    """In one sentence, where Python's stack would have ended."""
    folder = os.open(script, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    with pytest.raises(RepositoryError, match="lies more than 200 folders deep"):
        repository.register("digits", script, now=NOW)
    remove_tree(script)


def test_a_registration_that_is_told_to_end_leaves_nothing(repository: Repository, script: Path) -> None:
    """SIGTERM removes the copy under way, as Ctrl-C does."""
    process = start(REGISTER, repository.models_dir, script)
    assert first_line(process) == "copying"
    process.terminate()
    process.communicate(timeout=PROGRAM_S)
    assert process.returncode == 143
    assert everything_in(repository.models_dir) == [".staging"]


def test_special_files_are_refused(repository: Repository, script: Path) -> None:
    """A pipe in the source would block the copy for ever."""
    os.mkfifo(script / "pipe")
    with pytest.raises(RepositoryError, match="pipe is neither a file nor a folder"):
        repository.register("digits", script, now=NOW)


# Checksums


def registered_script(repository: Repository, script: Path) -> Registered:
    return repository.register("digits", script, now=NOW)


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
    assert "__pycache__" not in everything_in(registered_script(repository, script).files_dir)


def test_large_models_are_verified_on_several_threads(
    repository: Repository, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit the files are read in parallel, with the same results."""
    monkeypatch.setattr("stoker.models.registered._PARALLEL_FROM_BYTES", 10)
    monkeypatch.setattr("stoker.models.registered.os.cpu_count", lambda: 4)
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


@pytest.mark.parametrize("name", list(_KINDS))
def test_a_manifest_with_a_value_of_another_kind_is_refused(
    repository: Repository, script: Path, name: str
) -> None:
    """Whatever reads it later can rely on what stands there."""
    manifest = registered_script(repository, script).folder / "manifest.json"
    replace_file(manifest, json.dumps({**json.loads(manifest.read_bytes()), name: [1.5]}).encode())
    with pytest.raises(CorruptModel, match=r"digits:1: the file manifest\.json"):
        repository.get("digits")


def test_what_cannot_be_read_is_listed_apart(repository: Repository, script: Path) -> None:
    """Who asks for it gets the others; who does not is told of the first."""
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
    """What is run is among the files that have checksums, also in a manifest without one of its own."""
    manifest = registered_script(repository, script).folder / "manifest.json"
    content = {**json.loads(manifest.read_bytes()), **changed}
    del content["checksum"]
    replace_file(manifest, json.dumps(content).encode())
    with pytest.raises(CorruptModel, match=r"digits:1: the file manifest\.json .* is missing or malformed"):
        repository.get("digits")


def test_a_changed_manifest_is_refused(repository: Repository, script: Path) -> None:
    """It has a checksum of itself; the first manifests had none."""
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
    """The message says to delete it, so that has to work."""
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


# Deletion


def test_deleting_what_is_not_there(repository: Repository, onnx: Path) -> None:
    """An unknown name or version is said as for reading."""
    with pytest.raises(UnknownModel, match="no model 'mnist'"):
        repository.delete("mnist", 1)
    repository.register("mnist", onnx, now=NOW)
    with pytest.raises(UnknownModel, match="has no version 2"):
        repository.delete("mnist", 2)


def test_deleting_removes_the_files(repository: Repository, script: Path) -> None:
    """Nothing of a deleted version is left."""
    registered_script(repository, script)
    repository.delete("digits", 1)
    assert everything_in(repository.models_dir) == [".staging", "digits", "digits/.last_version"]


def test_a_served_version_is_not_deleted(repository: Repository, script: Path) -> None:
    """While anybody holds the version it stays, unless deletion is forced; the holder is not disturbed."""
    registered = registered_script(repository, script)
    with registered.hold(), registered.hold():
        with pytest.raises(ModelInUse, match="digits:1 is being served"):
            repository.delete("digits", 1)
        registered.verify()
        repository.delete("digits", 1, force=True)
    assert repository.list() == []


def test_a_version_let_go_of_can_be_deleted(repository: Repository, script: Path) -> None:
    """The end of the last hold frees the version."""
    registered = registered_script(repository, script)
    with registered.hold():
        pass
    repository.delete("digits", 1)
    with pytest.raises(UnknownModel, match="it was deleted"), registered.hold():
        pytest.fail("a deleted version was held")


def test_a_version_without_its_lease_cannot_be_held(repository: Repository, script: Path) -> None:
    """A lost lease file is said as such, not as a deletion."""
    registered = registered_script(repository, script)
    (registered.folder / ".lease").unlink()
    with pytest.raises(CorruptModel, match=r"the file \.lease"), registered.hold():
        pytest.fail("held without a lease")


# Several processes

PREFIX = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from stoker.models.repository import Repository
repository = Repository(Path(sys.argv[1]))
"""

REGISTER = (
    PREFIX
    + """
waited = []
def progress(copied, total):
    if not waited:
        waited.append(True)
        print("copying", flush=True)
        sys.stdin.readline()
print(repository.register("digits", Path(sys.argv[2]), now=datetime.now(UTC), progress=progress).version)
"""
)

REGISTER_MANY = (
    PREFIX
    + """
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    print(repository.register("digits", Path(sys.argv[2]), now=datetime.now(UTC)).version)
"""
)

HOLD = (
    PREFIX
    + """
with repository.get("digits").hold():
    print("held", flush=True)
    sys.stdin.readline()
"""
)


def start(code: str, *args: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PROGRAM_S)


def test_registering_at_once_gives_two_versions(repository: Repository, script: Path) -> None:
    """Processes that copy at the same time get different numbers, and each version is whole."""
    processes = [start(REGISTER, repository.models_dir, script) for _ in range(3)]
    assert [first_line(process) for process in processes] == ["copying"] * 3
    assert repository.list() == []
    outputs = [process.communicate("go\n", timeout=PROGRAM_S)[0] for process in processes]
    assert sorted(outputs) == ["1\n", "2\n", "3\n"]
    assert [model.version for model in repository.list()] == [1, 2, 3]
    for model in repository.list():
        model.verify()
    assert everything_in(repository.models_dir / ".staging") == []


def test_many_registrations_at_once_lose_none(repository: Repository, onnx: Path) -> None:
    """Three processes that register again and again give out each number once."""
    processes = [start(REGISTER_MANY, repository.models_dir, onnx) for _ in range(3)]
    assert [first_line(process) for process in processes] == ["ready"] * 3
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    numbers = [
        int(line) for process in processes for line in process.communicate(timeout=PROGRAM_S)[0].split()
    ]
    assert sorted(numbers) == list(range(1, 61))


def test_a_killed_registration_leaves_nothing_half_registered(repository: Repository, script: Path) -> None:
    """After kill -9 during a copy nothing is registered, and the next registration sweeps the rest."""
    process = start(REGISTER, repository.models_dir, script)
    assert first_line(process) == "copying"
    kill(process)
    staging = repository.models_dir / ".staging"
    assert any(staging.rglob("model"))
    assert repository.list() == []
    with pytest.raises(UnknownModel):
        repository.get("digits")
    registered = repository.register("digits", script, now=NOW)
    assert registered.version == 1
    registered.verify()
    assert everything_in(staging) == []


def test_a_copy_under_way_is_not_swept(repository: Repository, script: Path) -> None:
    """Another registration leaves the temporary folder of a living process alone."""
    process = start(REGISTER, repository.models_dir, script)
    assert first_line(process) == "copying"
    repository.register("digits", script, now=NOW)
    assert process.communicate("go\n", timeout=PROGRAM_S)[0] == "2\n"
    repository.get("digits", 2).verify()


def test_the_hold_of_a_killed_server_ends_with_it(repository: Repository, script: Path) -> None:
    """A version is in use while another process holds it, and free once that was killed."""
    registered_script(repository, script)
    process = start(HOLD, repository.models_dir)
    assert first_line(process) == "held"
    with pytest.raises(ModelInUse):
        repository.delete("digits", 1)
    kill(process)
    repository.delete("digits", 1)
    assert repository.list() == []


def test_debris_of_every_moment_is_swept(repository: Repository, script: Path) -> None:
    """Folders without owner and lock files without folder, as crashes leave them, go with the next change."""
    staging = repository.models_dir / ".staging"
    (staging / "abandoned" / "version").mkdir(parents=True)
    (staging / "orphan.lock").touch()
    repository.register("digits", script, now=NOW)
    assert sorted(path.name for path in staging.iterdir()) == [".lock"]


def test_a_number_is_skipped_rather_than_reused(repository: Repository, script: Path) -> None:
    """A crash between taking a number and the final rename costs that number and nothing else."""
    registered_script(repository, script)
    last = repository.models_dir / "digits" / ".last_version"
    last.write_text("2\n")
    assert repository.register("digits", script, now=NOW).version == 3


@pytest.mark.parametrize("content", [b"nonsense\n", b"", b"\xff", b"-1"])
def test_a_damaged_last_number_is_told_with_its_file(
    repository: Repository, script: Path, content: bytes
) -> None:
    """A number that is made up might have been given out before, to a version that was deleted."""
    registered_script(repository, script)
    last = repository.models_dir / "digits" / ".last_version"
    last.write_bytes(content)
    with pytest.raises(CorruptModel, match=f"{last} should hold the highest version"):
        repository.register("digits", script, now=NOW)
    last.write_text("5\n")
    assert repository.register("digits", script, now=NOW).version == 6


def test_a_file_in_place_of_the_models_is_not_taken_for_no_models(
    repository: Repository, script: Path
) -> None:
    """It is told, whatever is asked for."""
    repository.models_dir.parent.mkdir(parents=True, exist_ok=True)
    repository.models_dir.touch()
    for ask in (repository.list, lambda: repository.get("digits")):
        with pytest.raises(RepositoryError, match=f"{repository.models_dir} should be a folder"):
            ask()
    with pytest.raises(RepositoryError, match="File exists"):
        repository.register("digits", script, now=NOW)


def test_a_signature_is_read_from_the_copy(repository: Repository, script: Path) -> None:
    """From nothing else, for the original has files beside it; where it cannot be read nothing is registered."""

    def read(copy: Detected, folder: Path) -> dict[str, str]:
        assert copy.path.parent == folder
        assert folder.is_relative_to(repository.models_dir)
        return {"read": copy.path.name}

    assert repository.register("digits", script, now=NOW, read_signature=read).signature == {
        "read": "score.py"
    }

    def refuse(_: Detected, __: Path) -> None:
        raise RepositoryError("it needs files beside it")

    with pytest.raises(RepositoryError, match="files beside it"):
        repository.register("digits", script, now=NOW, read_signature=refuse)
    assert repository.versions("digits") == [1]
