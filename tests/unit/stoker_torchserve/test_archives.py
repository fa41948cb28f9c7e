"""TorchServe's archives as files: reading, unpacking, refusals."""

from __future__ import annotations

import json
import stat
import tarfile
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.torchserve_archives import (
    ECHO_HANDLER,
    MANIFEST,
    manifest_of,
    write_echo,
    write_folder,
    write_mar,
    write_tar,
)

from stoker.errors import OperatorError, RepositoryError
from stoker.models.layouts import discover
from stoker_torchserve.archives import MAX_TEXT_BYTES, read_text_file, unpack_archive
from stoker_torchserve.extension import find_model, find_requirements, read_source

FILES: dict[str, str | bytes] = {"echo_handler.py": ECHO_HANDLER, "data/words.txt": "one\ntwo\n"}
ECHO = manifest_of("echo", "echo_handler.py")


@pytest.mark.parametrize("write", [write_mar, write_tar, write_folder])
def test_each_format_is_found_under_its_manifests_name(tmp_path: Path, write: object) -> None:
    """Packed as zip, packed as tar in a folder of its own, or not packed."""
    assert callable(write)
    path = write(tmp_path, ECHO, FILES)
    (source,) = discover(path)
    assert (source.name, source.version, source.framework, source.path) == ("echo", 1, "torchserve", path)


@pytest.mark.parametrize("write", [write_mar, write_tar])
def test_an_archive_is_unpacked_once(tmp_path: Path, write: object) -> None:
    """Into a folder for its content; another content gets another folder, and the first goes once nobody holds it."""
    assert callable(write)
    path, archives = write(tmp_path, ECHO, FILES), tmp_path / "archives"
    with ExitStack() as leases:
        folder = unpack_archive(path, "first", archives, leases)
        assert (folder / "data/words.txt").read_text("ascii") == "one\ntwo\n"
        assert json.loads((folder / MANIFEST).read_bytes()) == ECHO
        (folder / "kept").touch()
        with ExitStack() as others:
            assert unpack_archive(path, "first", archives, others) == folder
        assert (folder / "kept").exists()
        second = unpack_archive(path, "second", archives, leases)
        assert folder.is_dir()
    with ExitStack() as leases:
        unpack_archive(path, "third", archives, leases)
        assert not folder.exists()
        assert not second.exists()


def test_a_store_has_several_models_and_versions(tmp_path: Path) -> None:
    """By their manifests, not by their files' names; a broken one does not hide the others."""
    write_echo(tmp_path)
    write_echo(tmp_path / "2", modelVersion="2.0").rename(tmp_path / "echo_v2.mar")
    write_folder(tmp_path, manifest_of("plain", "echo_handler.py"), FILES)
    (tmp_path / "broken.mar").write_bytes(b"no zip")
    broken: dict[tuple[str, int], OperatorError] = {}
    found = discover(tmp_path, broken)
    assert [(one.name, one.version) for one in found] == [("echo", 1), ("echo", 2), ("plain", 1)]
    assert "cannot be read as an archive" in str(broken["broken", 1])


def test_two_archives_of_one_version_are_no_choice(tmp_path: Path) -> None:
    """Neither is served, and both are named."""
    write_echo(tmp_path)
    write_echo(tmp_path / "other").rename(tmp_path / "again.mar")
    with pytest.raises(RepositoryError, match=r"echo.mar and .*again.mar are both version 1 of echo"):
        discover(tmp_path)


@pytest.mark.parametrize("name", ["../out.py", "/etc/cron.d/x", "a/../../b", "a\\b"])
def test_an_entry_outside_is_refused(tmp_path: Path, name: str) -> None:
    """Before anything is written."""
    path = write_mar(tmp_path, ECHO, {**FILES, name: "x"})
    with ExitStack() as leases, pytest.raises(RepositoryError, match="would lie outside its folder"):
        unpack_archive(path, "1", tmp_path / "archives", leases)
    assert not (tmp_path / "out.py").exists()


def test_a_link_is_refused(tmp_path: Path) -> None:
    """In both formats, and a device too."""
    path = write_mar(tmp_path, ECHO, FILES)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(RepositoryError, match="'link', which is a link or a device"):
        read_source(path)
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
        packed = write_tar(tmp_path, ECHO, FILES)
        with tarfile.open(packed, "w:gz") as archive:
            member = tarfile.TarInfo("echo/link")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        with pytest.raises(RepositoryError, match="which is a link or a device"):
            read_source(packed)


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    """An archive of more than a hundred times its size is refused before it is unpacked."""
    path = write_mar(tmp_path, ECHO, {**FILES, "zeros.bin": bytes(80 << 20)})
    with ExitStack() as leases, pytest.raises(RepositoryError, match="100 times its size"):
        unpack_archive(path, "1", tmp_path / "archives", leases)


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    """One could be checked, and the other used; nor can a file be a folder too."""
    path = write_mar(tmp_path, ECHO, FILES)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("echo_handler.py", "other")
    with pytest.raises(RepositoryError, match="two files of one name"):
        read_source(path)
    with pytest.raises(RepositoryError, match="two files of one name"):
        read_source(write_mar(tmp_path / "b", ECHO, {**FILES, "echo_handler.py/x": "x"}))


def test_a_header_of_an_archive_is_not_read_into_gigabytes(tmp_path: Path) -> None:
    """A few kilobytes of gzip may be a thousand times as many; large files are unpacked all the same."""
    bomb = tmp_path / "bomb.tar.gz"
    entry = tarfile.TarInfo("MAR-INF/MANIFEST.json")
    entry.pax_headers = {"comment": "x" * (2 << 20)}
    with tarfile.open(bomb, "w:gz") as archive:
        archive.addfile(entry)
    with pytest.raises(RepositoryError, match="one of its headers is too long"):
        read_source(bomb)
    weights = bytes(range(256)) * (5 << 12)
    path = write_tar(tmp_path, ECHO, {**FILES, "weights.pt": weights})
    with ExitStack() as leases:
        folder = unpack_archive(path, "1", tmp_path / "archives", leases)
        assert (folder / "weights.pt").read_bytes() == weights


def test_damaged_archive_is_refused(tmp_path: Path) -> None:
    """A wrong checksum, a missing manifest and a manifest that is too long are refused."""
    path = write_mar(tmp_path, ECHO, {**FILES, "weights.pt": bytes(range(256)) * 64})
    content = bytearray(path.read_bytes())
    content[content.index(b"weights.pt") + 20] ^= 0xFF
    path.write_bytes(content)
    with ExitStack() as leases, pytest.raises(RepositoryError, match="cannot be read as an archive"):
        unpack_archive(path, "1", tmp_path / "archives", leases)
    assert [one.name for one in (tmp_path / "archives").iterdir()] == [".lock"]
    empty = tmp_path / "empty.mar"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(RepositoryError, match="is no archive of TorchServe"):
        read_source(empty)
    long = write_mar(tmp_path / "long", ECHO, {"words": bytes(MAX_TEXT_BYTES + 1)})
    with pytest.raises(RepositoryError, match="is longer than 1 MiB"):
        read_text_file(long, "words")


def test_the_configuration_is_read_of_the_packed_archive(tmp_path: Path) -> None:
    """As settings under those of the operator; a file that is missing is named."""
    files: dict[str, str | bytes] = {**FILES, "model-config.yaml": "batchSize: 8\nmaxWorkers: 3\n"}
    named = manifest_of("echo", "echo_handler.py", configFile="model-config.yaml")
    source = read_source(write_mar(tmp_path, named, files))
    assert source.own_settings is not None
    assert (source.own_settings.max_batch_rows, source.own_settings.batching) == (8, "rows")
    assert "maxWorkers is passed over" in source.notes[0]
    with pytest.raises(RepositoryError, match=r"model-config.yaml as its configFile, which it has not"):
        read_source(write_mar(tmp_path / "b", named, FILES))
    with pytest.raises(RepositoryError, match="torchrun is not offered"):
        read_source(write_mar(tmp_path / "c", named, {**files, "model-config.yaml": "torchrun: {nproc: 2}"}))


def test_compiled_python_files_do_not_change_the_fingerprint(tmp_path: Path) -> None:
    """Compiled files are no change of a folder; a changed handler is one."""
    (source,) = discover(write_folder(tmp_path, ECHO, FILES))
    before = source.fingerprint()
    (source.path / "__pycache__").mkdir()
    (source.path / "__pycache__" / "echo_handler.cpython-311.pyc").touch()
    assert source.fingerprint() == before
    (source.path / "echo_handler.py").write_text("x = 1", encoding="ascii")
    assert source.fingerprint() != before


def test_requirements_are_those_that_the_manifest_names(tmp_path: Path) -> None:
    """The file may have any name."""
    named = manifest_of("echo", "echo_handler.py", requirementsFile="needs.txt")
    folder = write_folder(tmp_path, named, {**FILES, "needs.txt": "numpy\n"})
    assert find_requirements(folder) == folder / "needs.txt"
    assert find_requirements(write_folder(tmp_path / "b", ECHO, FILES)) is None


def test_the_model_of_a_default_handler_is_found(tmp_path: Path) -> None:
    """It has the class of its weights; an archive with its own handler has no model."""
    files: dict[str, str | bytes] = {
        "net.pt": b"",
        "net.py": "import torch\n\n\nclass Net(torch.nn.Module): pass\n",
    }
    eager = manifest_of("a", "image_classifier", serializedFile="net.pt", modelFile="net.py")
    folder = write_folder(tmp_path, eager, files)
    assert find_model(folder) == (folder / "net.pt", "net:Net", "image_classifier")
    scripted = write_folder(tmp_path, manifest_of("b", "base_handler", serializedFile="net.pt"), files)
    assert find_model(scripted) == (scripted / "net.pt", None, "base_handler")
    for folder, message in (
        (write_folder(tmp_path, ECHO, FILES), "has a handler of its own, echo_handler.py"),
        (write_folder(tmp_path, manifest_of("c", "base_handler"), {}), "has no serializedFile"),
        (write_folder(tmp_path / "d", eager, {**files, "net.py": "x = 1"}), "has to define one class"),
        (write_folder(tmp_path / "e", eager, {**files, "net.py": "class"}), "cannot be read"),
    ):
        with pytest.raises(RepositoryError, match=message):
            find_model(folder)


def test_truncated_tar_is_refused(tmp_path: Path) -> None:
    """It ends in the middle of a file."""
    path = write_tar(tmp_path, ECHO, {**FILES, "weights": bytes(1000)})
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(RepositoryError, match="cannot be read as an archive"):
        read_source(path)
