"""Whether a machine is the one that is meant: its host key is known, or it is not talked to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import asyncssh

from stoker_runs.records.failures import FailureCode, RunFailure
from stoker_runs.targets.ssh.settings import SshSettings

__all__ = ["HostKeys"]

_SYSTEM_WIDE: Final = Path("/etc/ssh/ssh_known_hosts")
_ALGORITHMS: Final = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
)


class HostKeys:
    """What is known of a machine's host key, and which one it has shown.

    Args:
        settings: The target.
    """

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._pinned_key: asyncssh.SSHKey | None = None
        if settings.host_key and not settings.host_key.startswith("SHA256:"):
            self._pinned_key = _public_key(settings)
        self._known: Sequence[asyncssh.SSHKey] = ()
        self._shown: list[asyncssh.SSHKey] = []

    @property
    def accepted(self) -> asyncssh.SSHKey | None:
        """The key that was shown and is the one meant by a fingerprint."""
        return next((key for key in self._shown if self._is_meant(key)), None)

    def client(self) -> asyncssh.SSHClient:
        """What asyncssh asks about a key that is not known."""
        return _Client(self._shown, self._is_meant)

    def known_hosts(self, host: str, address: str, port: int | None) -> Sequence[Any]:
        """Keys of the machine for asyncssh: the one of the target, else those of the user's and the system's files.

        Raises:
            ValueError: A file of known hosts is not as it should be.
        """
        if self._settings.host_key:
            return ([self._pinned_key] if self._pinned_key is not None else [], [], [])
        files = [
            str(path) for path in (Path("~/.ssh/known_hosts").expanduser(), _SYSTEM_WIDE) if path.is_file()
        ]
        found = asyncssh.match_known_hosts(files or b"", host, address, port)
        self._known = found[0]
        return found

    def algorithms(self) -> Sequence[Any]:
        """For which kinds of host keys to ask one after the other: a fingerprint may be that of any of them."""
        by_fingerprint = bool(self._settings.host_key) and self._pinned_key is None
        return ((), *([name] for name in _ALGORITHMS)) if by_fingerprint else ((),)

    def refusal(self) -> RunFailure:
        """Why the machine is not talked to, and what to do."""
        host = self._settings.host
        shown = " and ".join(dict.fromkeys(map(_named, self._shown))) or "a key of another kind"
        fingerprint = _fingerprint(self._shown[0]) if self._shown else "SHA256:FINGERPRINT"
        again = self._settings.attach_line("--host-key", fingerprint)
        if self._settings.host_key or self._known:
            was = self._settings.host_key if self._pinned_key is None else _named(self._pinned_key)
            was = was or " or ".join(map(_named, self._known))
            mend = again if self._settings.host_key else f"ssh-keygen -R '{self._in_known_hosts}' && {again}"
            return RunFailure(
                FailureCode.TARGET_UNUSABLE,
                f"the host key of {host} has changed: it shows {shown}, known is {was}; nothing was sent to it",
                "somebody may be in between, or the machine was installed anew: ask its owner for its fingerprint; "
                f"only if that is the one shown: {mend}",
            )
        return RunFailure(
            FailureCode.TARGET_UNUSABLE,
            f"the host key of {host} is not known: it shows {shown}",
            "compare that with what its owner says (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub there), then: "
            f"{again}",
        )

    @property
    def _in_known_hosts(self) -> str:
        port = self._settings.port
        return self._settings.address if port in (None, 22) else f"[{self._settings.address}]:{port}"

    def _is_meant(self, key: asyncssh.SSHKey) -> bool:
        return self._settings.host_key == _fingerprint(key)


class _Client(asyncssh.SSHClient):
    """Notes the keys that were shown, and takes the one that is meant."""

    def __init__(self, shown: list[asyncssh.SSHKey], is_meant: Callable[[asyncssh.SSHKey], bool]) -> None:
        self._shown = shown
        self._is_meant = is_meant

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Whether the key is the one meant; asked for keys that are in no file."""
        del host, addr, port
        self._shown.append(key)
        return self._is_meant(key)


def _public_key(settings: SshSettings) -> asyncssh.SSHKey:
    from stoker.errors import InvalidSettings

    try:
        return asyncssh.import_public_key(settings.host_key)
    except asyncssh.KeyImportError:
        raise InvalidSettings(
            f"compute target {settings.name}: host_key is neither a public key (ssh-ed25519 AAAA…) nor a "
            "fingerprint (SHA256:…)"
        ) from None


def _fingerprint(key: asyncssh.SSHKey) -> str:
    return str(key.get_fingerprint())


def _named(key: asyncssh.SSHKey) -> str:
    return f"{key.get_algorithm()} {_fingerprint(key)}"
