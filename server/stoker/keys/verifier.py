"""Verification of bearer keys in a frontend: in constant time, and always against the current keys.

The number that each replacement of a key raises (`stoker.keys.generation`) is read for each request, which costs some
40 ns; when it has changed, the hashes are read again.

The module is imported by frontends, so it needs nothing beyond the standard library.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable
from hmac import compare_digest
from pathlib import Path
from typing import Final

from stoker.errors import InvalidSettings
from stoker.keys.callers import DEFAULT, CallerTerms, read_callers
from stoker.keys.generation import FileGeneration, Generation
from stoker.keys.keyring import MAX_KEY_CHARS, MOST_BYTES, Keys, bearer_of, digest, verify_path
from stoker.system.durable import read_regular

# Represents "no header was accepted yet": random, so that no header equals it, not even an empty one.
_NO_HEADER = secrets.token_bytes(32)
_REMEMBERED: Final = 1024
_UNREADABLE: Final = -1
"""Takes the place of the generation of keys that could not be read."""

_log = logging.getLogger(__name__)


class KeyVerifier:
    """Verifies `Authorization` headers of a frontend with the keys of one service.

    Args:
        override: Keys given by the operator; then no file is read.
        model: The model; named keys are accepted only with one that is in their scope.
        generation: Changes when the keys do; by default the number in their folder, which takes longer to read.

    Raises:
        FileNotFoundError: The folder has no keys, so `Keyring.ensure` did not run.
    """

    def __init__(
        self,
        keys_dir: Path,
        service: str,
        override: Keys | None = None,
        *,
        model: str | None = None,
        clock_s: Callable[[], float] = time.time,
        generation: Generation | None = None,
    ) -> None:
        self._service = service
        self._keys_dir = keys_dir
        self._path = verify_path(keys_dir, service)
        self._model = model
        self._clock_s = clock_s
        self._reported_generation = 0
        self._digests: tuple[bytes, bytes] | None = None
        self._last_primary = self._last_secondary = _NO_HEADER
        self._callers: dict[bytes, CallerTerms] = {}
        # Headers with named keys. The time of a dictionary lookup reveals nothing: Python's hash of bytes is keyed
        # with a random number, and a match is compared completely.
        self._known: dict[bytes, CallerTerms] = {}
        self._reported_expired: set[str] = set()
        if override is not None:
            self._digests = override.digests()
            self._generation: Generation = memoryview(bytes(8)).cast("Q")
            self._loaded_generation = 0
        else:
            if not (self._path.exists() or (keys_dir / "generation").exists()):
                raise FileNotFoundError(f"there are no keys in {keys_dir}")
            self._generation = FileGeneration(keys_dir) if generation is None else generation
            self._loaded_generation = _UNREADABLE
            self._reload()

    @property
    def is_readable(self) -> bool:
        """Whether the files of the keys could be read when they were last needed."""
        return self._loaded_generation != _UNREADABLE

    def verify(self, authorization: bytes) -> bool:
        """Return whether the value of an `Authorization` header carries a valid key; see `holder`."""
        return self.holder(authorization) is not None

    def holder(self, authorization: bytes) -> CallerTerms | None:
        """Return the caller whose key the value of an `Authorization` header carries; None if it is not valid.

        The time taken does not reveal how much of a wrong key is right: every comparison covers the whole value, and
        both keys are always compared. The value is `Bearer KEY` with the scheme in any case; empty if absent.
        """
        if self._generation[0] != self._loaded_generation:
            self._reload()
        # Callers send the same header repeatedly: the last accepted one needs no hashing.
        if compare_digest(authorization, self._last_primary) | compare_digest(
            authorization, self._last_secondary
        ):
            return DEFAULT
        known = self._known.get(authorization)
        return self._by_digest(authorization) if known is None else self._admitted(known)

    def caller_with(self, identity: str) -> CallerTerms | None:
        """Return the caller with this identity, which tokens contain, if allowed to use the model now."""
        if self._generation[0] != self._loaded_generation:
            self._reload()
        found = next((terms for terms in self._callers.values() if terms.identity == identity), None)
        return None if found is None else self._admitted(found)

    def out_of_scope(self, authorization: bytes) -> bool:
        """Return whether a header carries a named key that is valid, but not for this model."""
        known = self._known.get(authorization)
        return known is not None and not self._has_expired(known) and not known.may_ask(str(self._model))

    def _by_digest(self, authorization: bytes) -> CallerTerms | None:
        key = bearer_of(authorization)
        if self._digests is None or not 0 < len(key) <= MAX_KEY_CHARS:
            return None
        presented = digest(key)
        primary, secondary = self._digests
        is_primary, is_secondary = compare_digest(presented, primary), compare_digest(presented, secondary)
        if is_primary:
            self._last_primary = authorization
        elif is_secondary:
            self._last_secondary = authorization
        if is_primary | is_secondary:
            return DEFAULT
        # The time of this lookup reveals nothing useful: one would need a key for a hash that is found.
        named = self._callers.get(presented)
        if named is None:
            return None
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[authorization] = named
        return self._admitted(named)

    def _admitted(self, terms: CallerTerms) -> CallerTerms | None:
        """The caller, if allowed to use the model now."""
        if terms.expires_s is None and terms.models is None:
            return terms
        if self._has_expired(terms):
            if terms.name not in self._reported_expired:
                self._reported_expired.add(terms.name)
                _log.warning("the key of the caller %s has expired; it is refused from now on", terms.name)
            return None
        return terms if terms.may_ask(str(self._model)) else None

    def _has_expired(self, terms: CallerTerms) -> bool:
        return terms.expires_s is not None and self._clock_s() >= terms.expires_s

    def _reload(self) -> None:
        # The counter is read before the files and incremented after they are replaced, so hashes may be newer than
        # the generation recorded here, but never older.
        generation = self._generation[0]
        self._last_primary = self._last_secondary = _NO_HEADER
        self._known.clear()
        self._reported_expired.clear()
        self._callers, self._loaded_generation = {}, generation
        try:
            stored = json.loads(read_regular(self._path, MOST_BYTES))
            self._digests = (
                _stored_digest(stored["primary_sha256"]),
                _stored_digest(stored["secondary_sha256"]),
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self._digests = None
            self._report(
                generation,
                f"requests to service {self._service} get 503 until {self._path} can be read: {error!r}",
            )
            return
        if self._model is not None:
            try:
                self._callers = read_callers(self._keys_dir)
            except InvalidSettings as error:
                self._report(generation, f"requests with named keys get 503: {error}")

    def _report(self, generation: int, message: str) -> None:
        # The generation is not recorded: the next request tries again, so a repaired file needs no restart.
        self._loaded_generation = _UNREADABLE
        if self._reported_generation != generation:
            self._reported_generation = generation
            _log.error("%s", message)


def _stored_digest(digest: str) -> bytes:
    value = bytes.fromhex(digest)
    if len(value) != hashlib.sha256().digest_size:
        raise ValueError(f"a SHA-256 has 64 hexadecimal digits, this one has {len(digest)}")
    return value
