"""What the file of an SSH target says, and its secrets, which are in a file of their own for its owner alone."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker_runs.targets.definitions import Target

__all__ = ["SshSettings"]

_TEXTS: Final = ("address", "username", "key_file", "host_key", "folder", "python")
_OTHERS: Final = 0o077
_FOLDER: Final = "~/.stoker-runs"
_PYTHON: Final = "python3"


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How a machine is reached.

    Attributes:
        name: The compute target.
        address: Its host name, an address, or an alias of the user's SSH configuration.
        port: Where its sshd listens; None leaves that to the user's SSH configuration, 22 where it says nothing.
        username: Who logs in; empty for what that says, and else for who submits.
        key_file: The private key; empty for those of the user's agent and of `~/.ssh`.
        host_key: Its public key as in `known_hosts` (`ssh-ed25519 AAAA…`), or the fingerprint of that
            (`SHA256:…`); empty where the user's `known_hosts` decides.
        folder: Where everything of runs is there; `~` is the home of who logs in.
        python: The interpreter there.
        password: Of the user there.
        passphrase: Of the private key.
    """

    name: str
    address: str
    port: int | None = None
    username: str = ""
    key_file: str = ""
    host_key: str = ""
    folder: str = _FOLDER
    python: str = _PYTHON
    password: str = field(default="", repr=False)
    passphrase: str = field(default="", repr=False)

    @classmethod
    def of(cls, target: Target, targets_dir: Path) -> SshSettings:
        """Read the settings of a target.

        Args:
            target: The target.
            targets_dir: Where its secrets are, `NAME.secret`.

        Raises:
            InvalidSettings: One is missing or cannot be, or others may read the secrets.
        """
        found = {name: target.settings[name] for name in _TEXTS if name in target.settings}
        for name, value in found.items():
            if not isinstance(value, str) or not value.strip():
                raise InvalidSettings(
                    f"compute target {target.name}: {name} is {value!r}, and has to be a text"
                )
        if "address" not in found:
            raise InvalidSettings(
                f"compute target {target.name} has no address: the host name of the machine"
            )
        if found["address"].startswith("-"):
            raise InvalidSettings(f"compute target {target.name}: {found['address']!r} is no address")
        port = target.settings.get("port")
        if port is not None and (not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536):
            raise InvalidSettings(
                f"compute target {target.name}: port is {port!r}, and has to be a number to 65535"
            )
        return cls(target.name, port=port, **found, **_secrets(targets_dir / f"{target.name}.secret"))

    def attach_line(self, *changes: str) -> str:
        """The command line that attaches the target as it is but for some options.

        Args:
            changes: The options, each with its value: they replace those of the same name.
        """
        own = {
            "--address": self.address,
            "--port": "" if self.port is None else str(self.port),
            "--username": self.username,
            "--key-file": self.key_file,
            "--host-key": self.host_key,
            "--folder": "" if self.folder == _FOLDER else self.folder,
            "--python": "" if self.python == _PYTHON else self.python,
        }
        words = ["stoker", "targets", "attach", "ssh", self.name]
        words += [
            word for name, value in own.items() if value and name not in changes for word in (name, value)
        ]
        for secret, value in (("--ask-password", self.password), ("--ask-passphrase", self.passphrase)):
            words += [secret] if value and secret not in changes else []
        return shlex.join([*words, *changes])

    @property
    def host(self) -> str:
        """The machine as messages name it."""
        if self.port in (None, 22):
            return self.address
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def _secrets(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_mode & _OTHERS:
            raise InvalidSettings(f"others may read the secrets in {path}; chmod 600 {path}")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"the secrets in {path} cannot be read: attach the target again") from error
    return {name: str(content[name]) for name in ("password", "passphrase") if name in content}
