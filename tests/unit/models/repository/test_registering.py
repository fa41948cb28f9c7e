"""Registering a model: its files are copied or refused, and its versions counted and listed."""

import json
import os
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.models.repository.conftest import NOW, contents_of, registered_script

from stoker.errors import CorruptModel, InvalidSettings, RepositoryError, UnknownModel
from stoker.models import registered_files
from stoker.models.frameworks import Detected
from stoker.models.repository import Repository
from stoker_base.trees import remove_tree


def test_registering_a_file(repository: Repository, onnx: Path) -> None:
    """A file becomes version 1 with all facts of the manifest."""
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
    assert contents_of(registered.files_dir) == contents_of(script)
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
    """A registered version is a copy: changes of its source do not matter."""
    registered = repository.register("mnist", onnx, now=NOW)
    onnx.write_bytes(b"other weights")
    registered.verify()
    assert repository.get("mnist").path.read_bytes() == b"weights"


def test_weights_beside_an_onnx_file_come_along(repository: Repository, onnx: Path) -> None:
    """External data under the names that exporters use belongs to the model, other neighbours do not."""
    for name in ("mnist.onnx.data", "mnist.onnx_data", "other.onnx", "mnist.txt"):
        (onnx.parent / name).write_bytes(b"data")
    registered = repository.register("mnist", onnx, now=NOW)
    assert contents_of(registered.files_dir) == ["mnist.onnx", "mnist.onnx.data", "mnist.onnx_data"]


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
    assert contents_of(repository.models_dir) == [".staging"]


def test_progress_counts_every_byte(repository: Repository, script: Path) -> None:
    """The reports rise to the size of all files."""
    reports: list[tuple[int, int]] = []
    registered = repository.register("digits", script, now=NOW, progress=lambda *sizes: reports.append(sizes))
    assert reports == sorted(reports)
    assert reports[-1] == (registered.size_bytes, registered.size_bytes)


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
    """A device has no end and a pipe waits for a writer: neither is read."""
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


def test_links_to_weights_are_followed_as_in_a_folder(repository: Repository, onnx: Path) -> None:
    """Links to weights beside the file are followed, links out of the folder are refused."""
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
    """The copy does not fill the disk; a sparse file counts with its size on the disk."""
    os.truncate(script / "weights.bin", 1 << 40)
    monkeypatch.setattr(
        registered_files, "copy_regular", lambda *_, **__: pytest.fail("nothing is to be copied")
    )
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
def test_a_file_that_changes_during_the_copy_is_refused(
    repository: Repository, script: Path, change: str
) -> None:
    """A copy of two states is no model; a growing file is not followed to its end."""
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
    assert contents_of(repository.models_dir) == [".staging"]


def test_folders_without_end_are_refused(repository: Repository, script: Path) -> None:
    """The error has one sentence, and comes before Python's stack ends."""
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


def test_special_files_are_refused(repository: Repository, script: Path) -> None:
    """A pipe in the source would block the copy for ever."""
    os.mkfifo(script / "pipe")
    with pytest.raises(RepositoryError, match="pipe is neither a file nor a folder"):
        repository.register("digits", script, now=NOW)


def test_a_number_is_skipped_rather_than_reused(repository: Repository, script: Path) -> None:
    """A crash between taking a number and the final rename costs that number and nothing else."""
    registered_script(repository, script)
    last = repository.models_dir / "digits" / ".last_version"
    last.write_text("2\n")
    assert repository.register("digits", script, now=NOW).version == 3


@pytest.mark.parametrize("content", [b"nonsense\n", b"", b"\xff", b"-1"])
def test_a_damaged_last_number_is_an_error_with_its_file(
    repository: Repository, script: Path, content: bytes
) -> None:
    """A guessed number might be that of a deleted version."""
    registered_script(repository, script)
    last = repository.models_dir / "digits" / ".last_version"
    last.write_bytes(content)
    with pytest.raises(CorruptModel, match=f"{last} should hold the highest version"):
        repository.register("digits", script, now=NOW)
    last.write_text("5\n")
    assert repository.register("digits", script, now=NOW).version == 6


def test_a_file_in_place_of_the_models_folder_is_an_error(repository: Repository, script: Path) -> None:
    """All queries raise it."""
    repository.models_dir.parent.mkdir(parents=True, exist_ok=True)
    repository.models_dir.touch()
    for ask in (repository.list, lambda: repository.get("digits")):
        with pytest.raises(RepositoryError, match=f"{repository.models_dir} should be a folder"):
            ask()
    with pytest.raises(RepositoryError, match="File exists"):
        repository.register("digits", script, now=NOW)


def test_a_signature_is_read_from_the_copy(repository: Repository, script: Path) -> None:
    """The original may have other files beside it; if the signature cannot be read, nothing is registered."""

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
