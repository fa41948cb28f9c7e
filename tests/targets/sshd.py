"""A real sshd on the loopback, with host key, configuration and authorized keys of its own; never the system's."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from tests.live_server import free_port
from tests.patience import PATIENCE_S

from stoker_run.processes import descendants

__all__ = ["SSHD", "Sshd", "why_not"]

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")


def why_not() -> str:
    """Why there can be none on this machine; empty where there can."""
    if SSHD is None:
        return "sshd is not installed: apt-get install openssh-server"
    if shutil.which("ssh-keygen") is None:
        return "ssh-keygen is not installed: apt-get install openssh-client"
    return ""


@dataclass
class Sshd:
    """One server; `folder` has its files, and `remote` is what targets of it keep there."""

    folder: Path
    address: str = "127.0.0.1"
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    port: int = 0
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)
    sessions: set[int] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        for name in ("host", "user"):
            self.make_key(name)
        self.authorize("user")
        if self.port == 0:
            self.port = free_port()

    @property
    def remote(self) -> Path:
        return self.folder / "remote"

    def make_key(self, name: str, passphrase: str = "", kind: str = "ed25519") -> Path:
        path = self.folder / name
        path.unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", name, "-f", str(path)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return path

    def authorize(self, *names: str) -> None:
        keys = "".join((self.folder / f"{name}.pub").read_text() for name in names)
        (self.folder / "authorized_keys").write_text(keys)

    def fingerprint(self, name: str = "host") -> str:
        done = subprocess.run(
            ["ssh-keygen", "-lf", str(self.folder / f"{name}.pub")],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.split()[1]

    def host_key(self) -> str:
        return " ".join((self.folder / "host.pub").read_text().split()[:2])

    def start(self) -> "Sshd":
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        lines = [
            f"Port {self.port}",
            f"ListenAddress {self.address}",
            f"HostKey {self.folder / 'host'}",
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
            f"PidFile {self.folder / 'pid'}",
            "StrictModes no",
            "UsePAM no",
            "PermitRootLogin yes",
            "MaxStartups 100",
            # In an inner shell bash does not read what the user has in .bashrc.
            " ".join(["SetEnv SHLVL=1", *(f'{name}="{value}"' for name, value in self.variables.items())]),
            *self.options,
        ]
        if not any(line.startswith("PasswordAuthentication") for line in self.options):
            lines.append("PasswordAuthentication no")
        config = self.folder / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        assert SSHD is not None
        with (self.folder / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log
            )
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection((self.address, self.port), timeout=5).close()
            except OSError:
                assert self.process.poll() is None, (self.folder / "sshd.log").read_text()
                assert time.monotonic() < end_s, (self.folder / "sshd.log").read_text()
                time.sleep(0.02)
            else:
                return self

    def stop(self) -> None:
        """End it; connections that there are go on, as they do when a system's service is stopped."""
        if self.process is not None:
            self.sessions |= descendants(self.process.pid)
            self.process.terminate()
            self.process.wait(PATIENCE_S)
            self.process = None

    def end(self) -> None:
        """End it with the connections that there are, of runners that a test has left or killed too late."""
        self.stop()
        for session in self.sessions:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{session}/comm").read_text().startswith("sshd"):
                    os.kill(session, signal.SIGTERM)

    def settings(self, **other: object) -> dict[str, object]:
        """The settings of a target that is this machine."""
        return {
            "address": self.address,
            "port": self.port,
            "key_file": str(self.folder / "user"),
            "host_key": self.host_key(),
            "folder": str(self.remote),
            "python": sys.executable,
            **other,
        }

    def attach(self, targets_dir: Path, name: str = "gpu-vm", **other: object) -> None:
        """Write the file of a target."""
        targets_dir.mkdir(parents=True, exist_ok=True)
        content = {"type": "ssh", **self.settings(**other)}
        (targets_dir / f"{name}.yaml").write_text(yaml.safe_dump(content))
