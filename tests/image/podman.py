"""podman with a storage of its own, outside the repository, and the base image that images are built on there."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["BASE", "ROOT", "Podman", "folder", "missing"]

ROOT: Final = Path(__file__).parents[2]
BASE: Final = "localhost/debian:12"

_SUITE: Final = "bookworm"
_BUILD_S: Final = 1800
_AUTHORITIES: Final = Path("/usr/local/share/ca-certificates")
_PIP: Final = Path("/etc/pip.conf")


def folder() -> Path:
    """Where images are kept: `STOKER_IMAGES`, else a folder of the user's cache."""
    if given := os.environ.get("STOKER_IMAGES"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker-images"


def missing() -> str:
    """Why no image can be built here; empty if it can."""
    if os.geteuid() != 0:
        return "images are built by root, and this is another user"
    absent = [name for name in ("podman", "debootstrap") if shutil.which(name) is None]
    return f"there is no {' and no '.join(absent)}" if absent else ""


class Podman:
    """podman as it is to be called.

    Attributes:
        environ: The environment in which it has its storage and settings.
    """

    def __init__(self, home: Path) -> None:
        """Find a storage driver that works here.

        Args:
            home: Where its settings, images and containers are.
        """
        home.mkdir(parents=True, exist_ok=True)
        files = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
        self.environ = os.environ | {variable: str(home / name) for variable, name in files.items()}
        (home / "containers.conf").write_text(_settings())
        # Without overlays every layer is a copy of all below it.
        for driver in ("overlay", "vfs"):
            (home / "storage.conf").write_text(
                f'[storage]\ndriver = "{driver}"\ngraphroot = "{home}/{driver}"\nrunroot = "/run/stoker-images"\n'
            )
            info = self.run("info", check=False)
            if info.returncode == 0:
                return
        raise AssertionError(f"podman does not run here: {info.stderr}")

    def run(
        self, *arguments: str | Path, check: bool = True, timeout_s: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its commands."""
        done = subprocess.run(
            ["podman", *map(str, arguments)],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, (
            f"podman {arguments[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
        return done

    def ask(self, *arguments: str | Path) -> str:
        """Run one of its commands; returns the output."""
        return self.run(*arguments).stdout.strip()

    def base(self) -> None:
        """Make the base image unless it is there: Debian by debootstrap, in a minute or two."""
        if self.run("image", "exists", BASE, check=False).returncode == 0:
            return
        with tempfile.TemporaryDirectory(prefix="stoker-base-") as scratch:
            root = Path(scratch) / "root"
            command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", _SUITE, str(root)]
            made = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
            assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-3000:]
            _trust(root)
            for downloaded in ("var/cache/apt", "var/lib/apt/lists"):
                shutil.rmtree(root / downloaded)
            with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
                subprocess.run(
                    ["podman", "import", "-", BASE],
                    stdin=tar.stdout,
                    env=self.environ,
                    capture_output=True,
                    check=True,
                )

    def build(self, tag: str, file: Path, context: Path, *options: str) -> str:
        """Build an image and return its name; what builds before have left is deleted.

        Args:
            tag: What it is called.
            file: The Dockerfile.
            context: The folder that it copies from.
            *options: Further options of `podman build`.
        """
        # A health check is nothing that OCI's own format knows.
        command = [
            "build",
            "--quiet",
            "--format",
            "docker",
            "--isolation",
            "chroot",
            "--network",
            "host",
            *options,
        ]
        self.run(*command, "--tag", tag, "--file", file, context, timeout_s=_BUILD_S)
        self.run("image", "prune", "--force")
        return tag

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody else of this machine tests images."""
        with (folder() / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _settings() -> str:
    # crun refuses control groups of both versions side by side, and systemd may be none there.
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    limits = 'default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]'
    return f'[containers]\n{limits}\n[engine]\n{runtime}cgroup_manager = "cgroupfs"\nevents_logger = "none"\n'


def _trust(root: Path) -> None:
    """Have the image trust what this machine trusts: there may be a proxy between it and the packages."""
    for file in _AUTHORITIES.glob("*.crt"):
        shutil.copy(file, root / _AUTHORITIES.relative_to("/"))
    subprocess.run(["chroot", root, "update-ca-certificates"], capture_output=True, check=True)
    settings = root / _PIP.relative_to("/")
    if _PIP.exists():
        shutil.copy(_PIP, settings)
    else:
        settings.write_text("[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n")
