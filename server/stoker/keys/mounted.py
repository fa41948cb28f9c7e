"""Keys in files managed by others, such as a mounted Kubernetes Secret: read at start, and followed.

The folder has files named `primary`, `secondary`, `admin` and `signing`, each with nothing but the key. `generation`
may hold a number for the set of keys, which is reported once the keys are in effect. Only the keys' hashes, and the
secret for signing tokens, are written into the workspace, from which frontends read them; see `stoker.keys.keyring`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Final

from stoker.errors import InvalidSettings
from stoker.keys.keyring import MOST_BYTES, AdminKey, Keyring, Keys
from stoker.system.durable import read_regular

logger = logging.getLogger(__name__)

_FILES: Final = ("primary", "secondary", "admin", "signing")
_GENERATION: Final = "generation"
_MOST_GENERATIONS: Final = 2**53
# Kubernetes replaces all files of a mounted Secret atomically, by changing the target of this link.
_ALL_AT_ONCE: Final = "..data"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class MountedKeys:
    """The content of the files, None or 0 for those that are absent; not in `repr`, so not in logs."""

    keys: Keys = field(repr=False)
    admin: Keys | None = field(default=None, repr=False)
    signing: bytes | None = field(default=None, repr=False)
    generation: int = field(default=0, compare=False)

    @classmethod
    def read(cls, folder: Path, *, signs: bool) -> MountedKeys:
        """Read the files of a folder; with `signs`, the secret for signing tokens is required."""
        texts, problems = _texts(folder)
        if problems:
            raise InvalidSettings(next(iter(problems.values())))
        return cls.of(texts, folder, signs=signs)

    @classmethod
    def of(cls, texts: Mapping[str, str], folder: Path, *, signs: bool) -> MountedKeys:
        """Make the keys of the texts of a folder's files; see `read`."""
        generation = _number(texts.get(_GENERATION, ""))
        keys = Keys.from_operator(texts.get("primary"), texts.get("secondary"))
        if keys is None:
            raise InvalidSettings(f"there is no key in {folder}; write one into its file primary")
        admin = texts.get("admin")
        signing = texts.get("signing")
        if signs and signing is None:
            raise InvalidSettings(
                f"there is no secret that signs tokens in {folder}; write 64 hexadecimal digits into its file signing"
            )
        secret = _secret(signing, folder) if signing else None
        return cls(keys, Keys(admin, admin) if admin else None, secret, generation)


class KeysFolder:
    """The keys of a server's services, read from such a folder and followed. Thread-safe."""

    def __init__(self, folder: Path, keys_dir: Path, *, signs: bool) -> None:
        """Read the keys from a folder, for the workspace's; with `signs`, the services accept tokens."""
        self._folder = folder
        self._keys_dir = keys_dir
        self._signs = signs
        self._owners: set[str] = set()
        self._lock = Lock()
        self._seen: object = _mark(folder)
        self._reported: set[str] = set()
        self._unwritten = ""
        self._keys = MountedKeys.read(folder, signs=signs)
        self._texts, _ = _texts(folder)
        self._generation = self._keys.generation

    @property
    def generation(self) -> int:
        """The generation of the keys in effect in all frontends; 0 if keys have none."""
        return self._generation

    @property
    def keys(self) -> Keys:
        """The keys of all services."""
        return self._keys.keys

    @property
    def has_admin_key(self) -> bool:
        """Whether the folder has a key for loading and unloading models."""
        return self._keys.admin is not None

    def provide(self, owner: str) -> None:
        """Publish the keys of a service to frontends, now and after each change."""
        with self._lock:
            self._publish(owner)
            self._owners.add(owner)

    def provide_admin_key(self) -> None:
        """Publish the key for loading and unloading models to frontends, if there is one."""
        if self._keys.admin is not None:
            AdminKey(self._keys_dir).adopt(self._keys.admin)

    def reload_if_changed(self) -> None:
        """Publish the keys again if the files have changed since the last call; invalid files change nothing.

        A file that cannot be read or is empty is reported, and its last content counts until the next call; the
        others apply. If the keys of a service cannot be written, the next call tries again.
        """
        mark = _mark(self._folder)
        if mark == self._seen:
            return
        # Before the files are read, so that a change meanwhile is found by the next call.
        self._seen = mark
        texts, problems = _texts(self._folder, self._texts)
        if problems:
            # Neither a new mode nor a new target of a link need change the mark.
            self._seen = None
            texts |= {name: self._texts[name] for name in (*problems, _GENERATION) if name in self._texts}
        for problem in problems.values():
            if problem not in self._reported:
                logger.warning("a key stays as it is: %s", problem)
        self._reported = set(problems.values())
        try:
            keys = MountedKeys.of(texts, self._folder, signs=self._signs)
        except InvalidSettings as error:
            logger.warning("the keys stay as they are: %s", error)
            return
        self._texts = texts
        with self._lock:
            if keys == self._keys and not self._unwritten:
                self._generation = keys.generation
                return
            self._keys = keys
            before, self._unwritten = self._unwritten, self._publish_all()
            if self._unwritten:
                self._seen = None
                if self._unwritten != before:
                    logger.warning(
                        "the keys in %s do not hold for all services yet: %s", self._folder, self._unwritten
                    )
                return
            self._generation = keys.generation
        logger.info("the keys in %s have changed; from now on the new ones are valid", self._folder)

    def _publish_all(self) -> str:
        """Publish the keys to all that can be reached; returns why others could not, or nothing."""
        failed = ""
        by_owner: list[Callable[[], None]] = [partial(self._publish, owner) for owner in self._owners]
        for publish in (*by_owner, self.provide_admin_key):
            try:
                publish()
            except OSError as error:
                failed = str(error)
        return failed

    def _publish(self, owner: str) -> None:
        keyring = Keyring(self._keys_dir, owner)
        keyring.adopt(self._keys.keys)
        if self._keys.signing is not None:
            keyring.adopt_signing_secret(self._keys.signing)


def _texts(
    folder: Path, before: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the texts of the files by name, and the problems of files that cannot be read.

    A file that had a text in `before` must not be empty: it is while it is being written.
    """
    texts, problems = {}, {}
    # The number first: if files change meanwhile, the keys are newer than their number, never older.
    for name in (_GENERATION, *_FILES):
        file = folder / name
        try:
            text = _text(file)
        except FileNotFoundError:
            if file.is_symlink():
                problems[name] = f"the link {file} leads nowhere"
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text of UTF-8"
            problems[name] = f"the key in {file} cannot be read: {why}"
        else:
            if text:
                texts[name] = text
            elif name in before:
                problems[name] = f"{file} is empty"
    return texts, problems


def _text(file: Path) -> str:
    """Return the content of a file without the line end that editors and `kubectl create secret --from-file` add."""
    return read_regular(file, MOST_BYTES).decode("utf-8").strip()


def _number(text: str) -> int:
    return min(int(text), _MOST_GENERATIONS) if text.isascii() and text.isdigit() else 0


def _secret(text: str, folder: Path) -> bytes:
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) < _SECRET_BYTES:
        raise InvalidSettings(
            f"{folder / 'signing'} has to hold {2 * _SECRET_BYTES} hexadecimal digits or more"
        )
    return secret


def _mark(folder: Path) -> object:
    """Return a value that changes whenever the files change."""
    try:
        return os.readlink(folder / _ALL_AT_ONCE)  # noqa: PTH115  # the text of the link, not a path
    except OSError:
        return tuple(_stamp(folder / name) for name in (*_FILES, _GENERATION))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
