"""A frontend's check of bearer keys: in constant time, and against the keys of this very moment.

The shared counter that each replacement of a key raises is read for each request, which costs some 40 ns; when it
moved, the hashes are read anew.

The module is imported by frontends, so it needs nothing beyond the standard library.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from hmac import compare_digest
from typing import TYPE_CHECKING

from stoker.keys.keyring import MAX_KEY_CHARS, digest, map_generation, verify_path

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.keys.keyring import Keys

__all__ = ["KeyVerifier"]

# Stands for "no header was accepted yet": random, so that no header equals it, not even an empty one.
_NO_HEADER = secrets.token_bytes(32)

_log = logging.getLogger(__name__)


class KeyVerifier:
    """A frontend's check of `Authorization` headers against the keys of one service.

    Args:
        keys_dir: The workspace's folder of keys, after `Keyring.ensure`.
        service: Name of the service.
        override: Keys given by the operator; then no file is read.

    Raises:
        FileNotFoundError: The folder has no keys, so `Keyring.ensure` did not run.
    """

    def __init__(self, keys_dir: Path, service: str, override: Keys | None = None) -> None:
        self._service = service
        self._path = verify_path(keys_dir, service)
        self._reported_generation = 0
        self._digests: tuple[bytes, bytes] | None = None
        self._last_primary = self._last_secondary = _NO_HEADER
        if override is not None:
            self._digests = override.digests()
            self._generation = memoryview(bytes(8)).cast("Q")
            self._loaded_generation = 0
        else:
            self._generation = map_generation(keys_dir)
            self._loaded_generation = -1
            self._reload()

    def verify(self, authorization: bytes) -> bool:
        """Say whether the value of an `Authorization` header carries a valid key.

        The time taken tells nothing of how much of a wrong key is right: every comparison runs over the
        whole value, and both keys are compared always.

        Args:
            authorization: The header's value, `Bearer KEY` with the scheme in any case; empty if absent.
        """
        if self._generation[0] != self._loaded_generation:
            self._reload()
        # Callers send the same header again and again: what was accepted last needs no hashing.
        if compare_digest(authorization, self._last_primary) | compare_digest(
            authorization, self._last_secondary
        ):
            return True
        return self._verify_by_digest(authorization)

    def _verify_by_digest(self, authorization: bytes) -> bool:
        scheme, _, key = authorization.partition(b" ")
        if self._digests is None or scheme.lower() != b"bearer" or len(key) > 2 * MAX_KEY_CHARS:
            return False
        presented = digest(key.strip(b" \t"))
        primary, secondary = self._digests
        is_primary, is_secondary = compare_digest(presented, primary), compare_digest(presented, secondary)
        if is_primary:
            self._last_primary = authorization
        elif is_secondary:
            self._last_secondary = authorization
        return is_primary | is_secondary

    def _reload(self) -> None:
        # The counter is read before the file and raised after it is replaced, so hashes can be newer than
        # the generation noted here, but never older.
        generation = self._generation[0]
        self._last_primary = self._last_secondary = _NO_HEADER
        try:
            stored = json.loads(self._path.read_bytes())
            self._digests = (
                _stored_digest(stored["primary_sha256"]),
                _stored_digest(stored["secondary_sha256"]),
            )
            self._loaded_generation = generation
        except (OSError, ValueError, KeyError, TypeError) as error:
            # The generation stays unloaded: the next request tries again, so a mended file needs no restart.
            self._digests = None
            self._loaded_generation = -1
            if self._reported_generation != generation:
                self._reported_generation = generation
                _log.error(
                    "every key of service %s is refused until %s can be read: %r",
                    self._service,
                    self._path,
                    error,
                )


def _stored_digest(digest: str) -> bytes:
    value = bytes.fromhex(digest)
    if len(value) != hashlib.sha256().digest_size:
        raise ValueError(f"a SHA-256 has 64 hexadecimal digits, this one has {len(digest)}")
    return value
