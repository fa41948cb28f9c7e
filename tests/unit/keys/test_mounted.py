"""Keys in files that somebody else keeps."""

import errno
import logging
import os
from pathlib import Path

import pytest

from stoker.errors import InvalidSettings
from stoker.keys import keyring
from stoker.keys.keyring import ADMIN, AdminKey, read_signing_secret
from stoker.keys.mounted import KeysFolder, MountedKeys
from stoker.keys.verifier import KeyVerifier

OLD, NEW, OTHER = "old-" * 8, "new-" * 8, "other-" * 4
SECRET = "ab" * 32


def written(folder: Path, **keys: str) -> Path:
    """A folder with these keys, each with a line end as editors leave it."""
    folder.mkdir(exist_ok=True)
    for name, key in keys.items():
        (folder / name).write_text(f"{key}\n")
    return folder


def mounted(folder: Path, version: str, **keys: str) -> Path:
    """A folder as Kubernetes mounts a Secret: all files appear at once, by a link that is replaced."""
    folder.mkdir(exist_ok=True)
    written(folder / version, **keys)
    (folder / "..new").symlink_to(version)
    (folder / "..new").rename(folder / "..data")
    for name in keys:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(Path("..data") / name)
    return folder


def accepts(keys_dir: Path, owner: str, key: str) -> bool:
    return KeyVerifier(keys_dir, owner).verify(f"Bearer {key}".encode())


def test_keys_of_a_folder_are_those_of_each_service(tmp_path: Path) -> None:
    """Frontends take both keys; the workspace has only their hashes, and nothing that could be shown."""
    folder = KeysFolder(written(tmp_path / "f", primary=OLD, secondary=OTHER), tmp_path / "keys", signs=False)
    for owner in ("a", "b"):
        folder.provide(owner)
        assert accepts(tmp_path / "keys", owner, OLD)
        assert accepts(tmp_path / "keys", owner, OTHER)
    texts = [file.read_bytes() for file in (tmp_path / "keys").iterdir()]
    assert not any(OLD.encode() in text for text in texts)
    assert not folder.has_admin_key


def test_the_number_of_the_keys_is_shown_once_they_hold(tmp_path: Path) -> None:
    """It is the number of keys known to frontends, also of the same keys; other texts count as none."""
    folder = KeysFolder(written(tmp_path / "f", primary=OLD, generation="3"), tmp_path / "keys", signs=False)
    assert folder.generation == 3
    for keys, shown in (
        ({"generation": "4"}, 4),
        ({"primary": "short", "generation": "5"}, 4),
        ({"primary": NEW, "generation": "six"}, 0),
    ):
        written(tmp_path / "f", **keys)
        folder.reload_if_changed()
        assert folder.generation == shown


@pytest.mark.parametrize("write", [written, None], ids=["files", "secret"])
def test_a_new_key_holds_at_the_next_look(tmp_path: Path, write: object) -> None:
    """Frontends that run follow at once, for the shared counter moves; without a change nothing does."""
    count = iter(range(9))

    def change(**keys: str) -> Path:
        if write is not None:
            return written(tmp_path / "f", **keys)
        return mounted(tmp_path / "f", f"..{next(count)}", **keys)

    folder = KeysFolder(change(primary=OLD, admin=OTHER), tmp_path / "keys", signs=False)
    folder.provide("a")
    folder.provide_admin_key()
    verifier, admin = KeyVerifier(tmp_path / "keys", "a"), KeyVerifier(tmp_path / "keys", ADMIN)
    counter = (tmp_path / "keys" / "generation").read_bytes()
    folder.reload_if_changed()
    assert (tmp_path / "keys" / "generation").read_bytes() == counter
    change(primary=NEW, admin=NEW + "!")
    folder.reload_if_changed()
    assert verifier.verify(f"Bearer {NEW}".encode())
    assert not verifier.verify(f"Bearer {OLD}".encode())
    assert admin.verify(f"Bearer {NEW}!".encode())


def test_invalid_mounted_key_leaves_the_keys_unchanged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An invalid key is logged once, and the earlier keys stay valid."""
    folder = KeysFolder(written(tmp_path / "f", primary=OLD), tmp_path / "keys", signs=False)
    folder.provide("a")
    (tmp_path / "f" / "primary").write_text("short")
    with caplog.at_level(logging.WARNING):
        folder.reload_if_changed()
        folder.reload_if_changed()
    assert [record.getMessage() for record in caplog.records] == [
        "the keys stay as they are: the primary key has 5 characters; it has to have 16 to 512"
    ]
    assert accepts(tmp_path / "keys", "a", OLD)
    (tmp_path / "f" / "primary").unlink()
    folder.reload_if_changed()
    assert accepts(tmp_path / "keys", "a", OLD)
    written(tmp_path / "f", primary=NEW)
    folder.reload_if_changed()
    assert accepts(tmp_path / "keys", "a", NEW)


def test_keys_that_cannot_be_written_are_written_by_a_later_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk a service goes on taking a replaced key until there is room; the others do not."""
    given = written(tmp_path / "f", primary=OLD)
    folder = KeysFolder(given, tmp_path / "keys", signs=False)
    for owner in ("a", "b", "c"):
        folder.provide(owner)
    written(given, primary=NEW)
    with monkeypatch.context() as full:
        replace = keyring.replace_file

        def replace_others(path: Path, *content: bytes) -> None:
            if path.name == "b.verify":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            replace(path, *content)

        full.setattr(keyring, "replace_file", replace_others)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                folder.reload_if_changed()
        (message,) = caplog.messages
        assert message.startswith(f"the keys in {given} do not hold for all services yet: [Errno 28]")
        assert [accepts(tmp_path / "keys", owner, NEW) for owner in "abc"] == [True, False, True]
    folder.reload_if_changed()
    assert [accepts(tmp_path / "keys", owner, NEW) for owner in "abc"] == [True, True, True]
    assert not accepts(tmp_path / "keys", "b", OLD)


def test_one_key_is_the_only_one(tmp_path: Path) -> None:
    """Where the folder has one key, no other is made beside it."""
    keys = MountedKeys.read(written(tmp_path / "f", secondary=OTHER), signs=False)
    assert (keys.keys.primary, keys.keys.secondary) == (OTHER, OTHER)
    assert OTHER not in repr(keys)


def test_tokens_are_signed_by_the_secret_of_the_folder(tmp_path: Path) -> None:
    """All pods of a service sign and check tokens alike."""
    folder = KeysFolder(written(tmp_path / "f", primary=OLD, signing=SECRET), tmp_path / "keys", signs=True)
    folder.provide("a")
    assert read_signing_secret(tmp_path / "keys", "a") == bytes.fromhex(SECRET)


@pytest.mark.parametrize(
    ("keys", "signs", "message"),
    [
        ({}, False, "there is no key in .*f; write one into its file primary"),
        ({"admin": OTHER}, False, "there is no key in"),
        ({"primary": "short"}, False, "the primary key has 5 characters"),
        ({"primary": OLD}, True, "there is no secret that signs tokens in"),
        ({"primary": OLD, "signing": "ab"}, True, "signing has to hold 64 hexadecimal digits or more"),
        ({"primary": OLD, "signing": "no digits"}, False, "signing has to hold 64"),
    ],
)
def test_folder_without_needed_keys_stops_the_start(
    tmp_path: Path, keys: dict[str, str], signs: bool, message: str
) -> None:
    """The message names the file and its required content."""
    with pytest.raises(InvalidSettings, match=message):
        KeysFolder(written(tmp_path / "f", **keys), tmp_path / "keys", signs=signs)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A folder in the place of a key is somebody's mistake, not an absent key."""
    (written(tmp_path / "f") / "primary").mkdir()
    with pytest.raises(InvalidSettings, match=r"the key in .*primary cannot be read"):
        MountedKeys.read(tmp_path / "f", signs=False)


def test_an_admin_key_of_the_folder_is_published_alone(tmp_path: Path) -> None:
    """Nothing is kept of it that `stoker keys show admin` could show."""
    folder = KeysFolder(written(tmp_path / "f", primary=OLD, admin=OTHER), tmp_path / "keys", signs=False)
    folder.provide_admin_key()
    assert folder.has_admin_key
    assert accepts(tmp_path / "keys", ADMIN, OTHER)
    assert not AdminKey(tmp_path / "keys").path.exists()


def harmed(file: Path, how: str) -> None:
    """Do something to a file that leaves no key in it."""
    file.unlink()
    match how:
        case "empty":
            file.touch()
        case "dangling":
            file.symlink_to("nowhere")
        case "folder":
            file.mkdir()
        case "FIFO":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "huge":
            file.touch()
            os.truncate(file, 1 << 40)
        case "no text":
            file.write_bytes(b"\xff\xfe")


@pytest.mark.parametrize("how", ["empty", "dangling", "folder", "FIFO", "device", "huge", "no text"])
def test_a_key_that_cannot_be_read_stays_while_others_follow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Callers are not locked out while a file is being replaced; a good one is taken, also by a later look."""
    given = written(tmp_path / "f", primary=OLD, secondary=OTHER, generation="1")
    folder = KeysFolder(given, tmp_path / "keys", signs=False)
    folder.provide("a")
    verifier = KeyVerifier(tmp_path / "keys", "a")
    harmed(given / "primary", how)
    written(given, secondary=NEW, generation="2")
    with caplog.at_level(logging.WARNING):
        folder.reload_if_changed()
        folder.reload_if_changed()
    assert [record.message.startswith("a key stays as it is: ") for record in caplog.records] == [True]
    assert verifier.verify(f"Bearer {OLD}".encode())
    assert verifier.verify(f"Bearer {NEW}".encode())
    assert not verifier.verify(f"Bearer {OTHER}".encode())
    assert folder.generation == 1
    (given / "primary").rmdir() if how == "folder" else (given / "primary").unlink()
    written(given, primary=OTHER)
    folder.reload_if_changed()
    assert verifier.verify(f"Bearer {OTHER}".encode())
    assert not verifier.verify(f"Bearer {OLD}".encode())
    assert folder.generation == 2


@pytest.mark.parametrize("how", ["dangling", "folder", "FIFO", "device", "huge", "no text"])
def test_a_key_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path, how: str) -> None:
    """There is no key of before then; nothing is waited for, and nothing read without end."""
    given = written(tmp_path / "f", primary=OLD, secondary=OTHER)
    harmed(given / "secondary", how)
    with pytest.raises(InvalidSettings, match="secondary"):
        MountedKeys.read(given, signs=False)
