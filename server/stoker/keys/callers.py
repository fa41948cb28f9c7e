"""Named keys: they identify individual callers, and define their permissions.

They are stored beside the keys of services, for all models of the workspace: the file `.callers` has the SHA-256 of
each key and its terms, and nothing from which a key could be recovered. A change increments the counter that
frontends have mapped, as a change of any other key does; see `stoker.keys.keyring`.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from stoker.errors import InvalidSettings
from stoker.keys.generation import FileGeneration, Generation, raise_generation
from stoker.keys.keyring import check_key, digest, new_key
from stoker.settings.choices import Tier
from stoker.settings.names import checked_name, matches_any
from stoker.system.durable import locked, private_folder, read_regular, replace_file

MOST_CALLERS: Final = 256
"""Maximum number of callers, including the default caller, who has the two keys of a service."""
_HASH_BYTES: Final = 32
_MOST_BYTES: Final = 16 << 20
_Positive = Annotated[float, Meta(gt=0)]


class CallerTerms(Struct, frozen=True, omit_defaults=True):
    """A caller, with rights and limits.

    Attributes:
        id: Random, so that a name that is used again is another caller; empty for callers of earlier versions.
        number: The caller's number within the server, below `MOST_CALLERS`; 0 for callers without a name.
        models: The models that the caller may use, by name or pattern (`customer-*`); None for all.
        expires_s: When the key expires, in seconds of the epoch; None for never.
        weight: Share of the device's time relative to other waiting callers.
        max_tier: The highest tier that the caller may request.
        rows_per_s: Quota of rows per second; None for no limit.
        device_ms_per_s: Quota of device time per second, in milliseconds; None for no limit.
        burst_s: Number of seconds of either quota that may be used at once.
    """

    name: str
    number: Annotated[int, Meta(gt=0, lt=MOST_CALLERS)]
    id: str = ""
    models: frozenset[str] | None = None
    expires_s: float | None = None
    weight: float = 1.0
    max_tier: Tier = "normal"
    rows_per_s: _Positive | None = None
    device_ms_per_s: _Positive | None = None
    burst_s: _Positive = 2.0

    @property
    def identity(self) -> str:
        """The name of the caller in tokens and stored requests: no later caller of this name has it."""
        return f"{self.name} {self.id}" if self.id else self.name

    @property
    def limited(self) -> bool:
        """Whether the caller has a quota."""
        return self.rows_per_s is not None or self.device_ms_per_s is not None

    def may_ask(self, model: str) -> bool:
        """Return whether the caller may use a model."""
        return self.models is None or matches_any(model, self.models)


DEFAULT: Final = CallerTerms("default", 0)
"""The caller with the primary or secondary key of a service, or without a key if none is required."""


ONLY_DEFAULT: Final[Mapping[int, str]] = {DEFAULT.number: DEFAULT.name}
"""Caller names by number, if only the default caller exists."""


class CallerBook:
    """The named keys of a workspace, for administration."""

    def __init__(self, keys_dir: Path) -> None:
        self.keys_dir = keys_dir

    def callers(self) -> list[CallerTerms]:
        """Return all callers, sorted by name."""
        return sorted(read_callers(self.keys_dir).values(), key=lambda terms: terms.name)

    def find(self, name: str) -> CallerTerms:
        """Return the caller with this name; raises InvalidSettings if there is none."""
        callers = {terms.name: terms for terms in self.callers()}
        if name not in callers:
            raise _unknown(name, list(callers))
        return callers[name]

    def add(self, name: str, key: str | None = None, terms: Mapping[str, Any] | None = None) -> str:
        """Add a caller; return the key, by default 256 random bits, which is not stored. Servers accept it at once.

        `terms` are further attributes of `CallerTerms` by name.
        """
        checked_name(name, "caller")
        if name == DEFAULT.name:
            raise InvalidSettings(
                "default is who comes with a primary or secondary key; choose another name for a caller"
            )
        text = new_key() if key is None else key
        check_key("caller's", text)
        private_folder(self.keys_dir)
        with locked(self.keys_dir / ".lock"):
            book = read_callers(self.keys_dir)
            if any(terms.name == name for terms in book.values()):
                raise InvalidSettings(
                    f"there is a caller {name} already; 'stoker keys set {name}' changes it"
                )
            hashed = digest(text.encode())
            if hashed in book:
                raise InvalidSettings(
                    f"the caller {book[hashed].name} has this key; give each one of its own"
                )
            book[hashed] = CallerTerms(name, _free_number(book), secrets.token_hex(8), **(terms or {}))
            self._write(book)
        return text

    def change(self, name: str, changes: Mapping[str, Any]) -> CallerTerms:
        """Change a caller's terms from the next request on: attributes except `name`, `number` and `id`."""
        with self._changing(name) as (book, hashed):
            book[hashed] = msgspec.structs.replace(book[hashed], **changes)
            return book[hashed]

    def remove(self, name: str) -> None:
        """Remove a caller, whose key is refused from the next request on."""
        with self._changing(name) as (book, hashed):
            del book[hashed]

    @contextlib.contextmanager
    def _changing(self, name: str) -> Iterator[tuple[dict[bytes, CallerTerms], bytes]]:
        """Yield the callers, to be changed in the body, and the hash of the named caller's key."""
        if not _path(self.keys_dir).exists():
            raise _unknown(name, ())
        with locked(self.keys_dir / ".lock"):
            book = read_callers(self.keys_dir)
            hashed = next((hashed for hashed, terms in book.items() if terms.name == name), None)
            if hashed is None:
                raise _unknown(name, sorted(terms.name for terms in book.values()))
            yield book, hashed
            self._write(book)

    def _write(self, book: Mapping[bytes, CallerTerms]) -> None:
        stored = [
            {**msgspec.to_builtins(terms, order="sorted"), "sha256": hashed.hex()}
            for hashed, terms in book.items()
        ]
        replace_file(_path(self.keys_dir), json.dumps({"callers": stored}, indent=2).encode() + b"\n")
        raise_generation(self.keys_dir)


def read_callers(keys_dir: Path) -> dict[bytes, CallerTerms]:
    """Return the callers of a workspace by the SHA-256 of their keys; empty if there are none."""
    path = _path(keys_dir)
    try:
        stored = msgspec.json.decode(read_regular(path, _MOST_BYTES))["callers"]
        return {_hash(one["sha256"]): msgspec.convert(one, CallerTerms) for one in stored}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidSettings(
            f"the named keys in {path} cannot be read; restore that file, or delete it and add them again: {error!r}"
        ) from error


def _free_number(book: Mapping[bytes, CallerTerms]) -> int:
    numbers = {terms.number for terms in book.values()}
    free = next((number for number in range(1, MOST_CALLERS) if number not in numbers), None)
    if free is None:
        raise InvalidSettings(
            f"there are {MOST_CALLERS} callers already; remove one by 'stoker keys remove NAME'"
        )
    return free


def _unknown(name: str, there: Sequence[str]) -> InvalidSettings:
    known = f"; there are: {', '.join(there)}" if there else "; none has been added by 'stoker keys add' yet"
    return InvalidSettings(f"there is no caller {name!r}{known}")


def _hash(text: str) -> bytes:
    hashed = bytes.fromhex(text)
    if len(hashed) != _HASH_BYTES:
        raise ValueError(f"a SHA-256 has {2 * _HASH_BYTES} hexadecimal digits, this one has {len(text)}")
    return hashed


def _path(keys_dir: Path) -> Path:
    return keys_dir / ".callers"


class KnownCallers:
    """The current callers with named keys, for a process that follows changes of the `generation`."""

    def __init__(self, keys_dir: Path, generation: Generation | None = None) -> None:
        self._keys_dir = keys_dir
        self._generation = FileGeneration(keys_dir) if generation is None else generation
        self._read_generation = -1
        self.names: Mapping[int, str] = ONLY_DEFAULT

    def changed(self) -> Collection[CallerTerms] | None:
        """Return all callers if any key has changed since the last call; else None."""
        generation = self._generation[0]
        if generation == self._read_generation or not self._keys_dir.is_dir():
            return None
        self._read_generation = generation
        try:
            callers = read_callers(self._keys_dir).values()
        except InvalidSettings:
            # The verifiers report this error, and refuse all named keys.
            return None
        self.names = {**ONLY_DEFAULT, **{terms.number: terms.name for terms in callers}}
        return callers
