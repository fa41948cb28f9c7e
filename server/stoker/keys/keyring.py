"""Bearer keys: create, hash, and rotate while servers run.

Each service has a primary and a secondary key, both valid, so that callers can move from one to the other
while the first is replaced. Two files hold them, both readable by the owner alone: `SERVICE.keys` is read by
`stoker keys show`, `SERVICE.verify` has only SHA-256 hashes and is all that a frontend opens. A service that accepts
tokens has a third file, `SERVICE.signing`, with the secret that signs them; see `stoker.keys.tokens`.

A replaced key takes effect at once in every running frontend, without checking files for each request: after the
files are replaced, the number that frontends compare is raised; see `stoker.keys.generation`.

The module is imported by frontends, so it needs nothing beyond the standard library.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from stoker.errors import InvalidSettings
from stoker.keys.generation import raise_generation
from stoker.settings.names import checked_service
from stoker.system.durable import locked, private_folder, read_regular, replace_file

Slot = Literal["primary", "secondary"]

ADMIN: Final = ".admin"
"""Takes the place of a service name for the key for loading and unloading models; it is no valid service name."""

BEARER_HEADER: Final = "the header 'Authorization: Bearer <{}>'"
"""How HTTP callers send a key or a token; the placeholder is one of these words."""


def bearer_of(authorization: bytes) -> bytes:
    """Return the key or token in the value of a header `Authorization`; empty for another scheme."""
    scheme, _, text = authorization.partition(b" ")
    return text.strip(b" \t") if scheme.lower() == b"bearer" else b""


MIN_KEY_CHARS = 16
MAX_KEY_CHARS = 512
_KEY = re.compile(r"[!-~]*", re.ASCII)
MOST_BYTES: Final = 1 << 16
"""The maximum size of a file of keys."""
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Keys:
    """The two valid keys of a service, the second for while the first is replaced; not in `repr`, so not in logs."""

    primary: str = field(repr=False)
    secondary: str = field(repr=False)

    def __post_init__(self) -> None:
        for slot, key in (("primary", self.primary), ("secondary", self.secondary)):
            check_key(slot, key)

    @classmethod
    def generate(cls) -> Keys:
        """Make two keys of 256 random bits each."""
        return cls(new_key(), new_key())

    @classmethod
    def from_operator(cls, primary: str | None, secondary: str | None) -> Keys | None:
        """Return keys given by the operator (STOKER_PRIMARY_KEY, STOKER_SECONDARY_KEY), None if there are none.

        If only one is given, it is the only valid key: given keys are never combined with those of the files.
        """
        one = primary if primary is not None else secondary
        if one is None:
            return None
        return cls(one, secondary if secondary is not None else one)

    def replaced(self, slot: Slot, key: str) -> Keys:
        """Return a copy with another key in the slot."""
        return Keys(key, self.secondary) if slot == "primary" else Keys(self.primary, key)

    def digests(self) -> tuple[bytes, bytes]:
        """Return the SHA-256 of each key, primary first."""
        return digest(self.primary.encode()), digest(self.secondary.encode())


class Keyring:
    """The stored keys of one service, in the workspace's folder of keys."""

    def __init__(self, keys_dir: Path, service: str) -> None:
        self.service = _checked(service)
        self.keys_dir = keys_dir
        self.path = keys_dir / f"{service}.keys"
        """The readable keys, for messages that say where they are."""

    def ensure(self) -> Keys:
        """Return the keys, and create missing ones; concurrent processes agree on the keys."""
        private_folder(self.keys_dir)
        with locked(self.keys_dir / ".lock"):
            try:
                keys = self.show()
                self.path.chmod(0o600)
            except FileNotFoundError:
                keys = self._generate()
                self._write_keys(keys)
            self._publish(keys)
        return keys

    def _generate(self) -> Keys:
        return Keys.generate()

    def show(self) -> Keys:
        """Return the keys; raise FileNotFoundError if there are none yet."""
        try:
            stored = json.loads(read_regular(self.path, MOST_BYTES))
            return Keys(stored["primary"], stored["secondary"])
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unreadable(f"the keys of service {self.service}", self.path, error) from error
        except (ValueError, KeyError, TypeError, RecursionError, InvalidSettings) as error:
            raise InvalidSettings(
                f"the keys of service {self.service} in {self.path} are malformed; "
                "restore that file, or delete it to get new keys at the next start"
            ) from error

    def regenerate(self, slot: Slot, value: str | None = None) -> Keys:
        """Replace one key, by a random one unless a value is given; running frontends follow at once."""
        key = new_key() if value is None else value
        check_key(slot, key)
        with locked(self.keys_dir / ".lock"):
            keys = self.show().replaced(slot, key)
            # The readable file goes first: after an interruption, no key is valid that its owner cannot read.
            self._write_keys(keys)
            self._publish(keys)
        return keys

    def adopt(self, keys: Keys) -> None:
        """Publish keys that are stored elsewhere to frontends: only their hashes are written here."""
        private_folder(self.keys_dir)
        with locked(self.keys_dir / ".lock"):
            self._publish(keys)

    def adopt_signing_secret(self, secret: bytes) -> None:
        """Use a secret for signing tokens that is stored elsewhere."""
        private_folder(self.keys_dir)
        with locked(self.keys_dir / ".lock"):
            self._write_signing_secret(secret)

    def remove(self) -> None:
        """Delete the keys and the signing secret of a service that is no longer served."""
        if not self.keys_dir.is_dir():
            return
        with locked(self.keys_dir / ".lock"):
            for path in (
                self.path,
                verify_path(self.keys_dir, self.service),
                _signing_path(self.keys_dir, self.service),
            ):
                path.unlink(missing_ok=True)

    def ensure_signing_secret(self) -> bytes:
        """Return the secret for signing tokens; 256 random bits are generated if there is none."""
        private_folder(self.keys_dir)
        with locked(self.keys_dir / ".lock"):
            try:
                return read_signing_secret(self.keys_dir, self.service)
            except FileNotFoundError:
                return self._write_signing_secret(secrets.token_bytes(_SECRET_BYTES))

    def regenerate_signing_secret(self) -> None:
        """Replace the secret for signing tokens: running frontends refuse all tokens issued so far at once."""
        if not _signing_path(self.keys_dir, self.service).exists():
            raise InvalidSettings(
                f"service {self.service} signs no tokens; start it with --token-auth, which makes the secret"
            )
        with locked(self.keys_dir / ".lock"):
            self._write_signing_secret(secrets.token_bytes(_SECRET_BYTES))

    def _write_signing_secret(self, secret: bytes) -> bytes:
        stored = {"service": self.service, "signing_secret": secret.hex()}
        path = _signing_path(self.keys_dir, self.service)
        replace_file(path, json.dumps(stored, indent=2).encode() + b"\n")
        raise_generation(self.keys_dir)
        return secret

    def _write_keys(self, keys: Keys) -> None:
        stored = {"service": self.service, "primary": keys.primary, "secondary": keys.secondary}
        replace_file(self.path, json.dumps(stored, indent=2).encode() + b"\n")

    def _publish(self, keys: Keys) -> None:
        primary, secondary = (hashed.hex() for hashed in keys.digests())
        stored = {"service": self.service, "primary_sha256": primary, "secondary_sha256": secondary}
        replace_file(verify_path(self.keys_dir, self.service), json.dumps(stored, indent=2).encode() + b"\n")
        raise_generation(self.keys_dir)


class AdminKey(Keyring):
    """The key for loading and unloading models, stored as both keys of a pair."""

    def __init__(self, keys_dir: Path) -> None:
        super().__init__(keys_dir, ADMIN)

    def _generate(self) -> Keys:
        key = new_key()
        return Keys(key, key)

    def replace(self, value: str | None = None) -> str:
        """Replace the key, by a random one unless a value is given; running servers accept it at once."""
        key = new_key() if value is None else value
        keys = Keys(key, key)
        with locked(self.keys_dir / ".lock"):
            self.show()
            self._write_keys(keys)
            self._publish(keys)
        return key


def read_signing_secret(keys_dir: Path, service: str) -> bytes:
    """Return the secret for signing a service's tokens; raise FileNotFoundError if it accepts none."""
    path = _signing_path(keys_dir, service)
    try:
        secret = bytes.fromhex(json.loads(read_regular(path, MOST_BYTES))["signing_secret"])
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable(f"the signing secret of service {service}", path, error) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidSettings(
            f"the signing secret of service {service} in {path} is malformed; "
            "restore that file, or delete it to get a new secret at the next start"
        ) from error
    if len(secret) < _SECRET_BYTES:
        raise InvalidSettings(
            f"the signing secret of service {service} in {path} is shorter than {_SECRET_BYTES} bytes"
        )
    return secret


def _unreadable(subject: str, path: Path, error: OSError) -> InvalidSettings:
    return InvalidSettings(
        f"{subject} in {path} cannot be read: {error.strerror}; restore that file, or remove it"
    )


def services_with_keys(keys_dir: Path) -> list[str]:
    """Return the names of the services that have keys in the folder, sorted."""
    return sorted(_services(keys_dir, ".keys"))


def services_that_sign(keys_dir: Path) -> list[str]:
    """Return the names of the services that have a signing secret in the folder, sorted."""
    return sorted(_services(keys_dir, ".signing"))


def _services(keys_dir: Path, suffix: str) -> Iterator[str]:
    for path in keys_dir.glob(f"*{suffix}"):
        if not path.name.startswith("."):
            yield path.name.removesuffix(suffix)


def verify_path(keys_dir: Path, service: str) -> Path:
    """Return the file with the hashes of a service's keys."""
    return keys_dir / f"{_checked(service)}.verify"


def _checked(service: str) -> str:
    return service if service == ADMIN else checked_service(service, "service")


def _signing_path(keys_dir: Path, service: str) -> Path:
    return keys_dir / f"{checked_service(service, 'service')}.signing"


def new_key() -> str:
    """Make a key of 256 random bits."""
    return secrets.token_urlsafe(32)


def check_key(slot: str, key: str) -> None:
    """Raise InvalidSettings, with the name of the `slot`, unless this is a valid key."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidSettings(f"the {slot} key may have only visible ASCII characters, and no space")
    if not MIN_KEY_CHARS <= len(key) <= MAX_KEY_CHARS:
        raise InvalidSettings(
            f"the {slot} key has {len(key)} characters; it has to have {MIN_KEY_CHARS} to {MAX_KEY_CHARS}"
        )


def digest(key: bytes) -> bytes:
    """Return the SHA-256 of a key; frontends see nothing else of it."""
    return hashlib.sha256(key).digest()
