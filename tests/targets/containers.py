"""Podman for tests: storage of its own, and an image of Debian with Python that debootstrap makes once."""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from stoker.settings.workspace import Workspace
from stoker_runs.targets.container import ContainerEngine
from stoker_runs.targets.definitions import DOCKER, Target
from stoker_runs.targets.engine import Engine

__all__ = ["IMAGE", "container_engine", "ready", "variables"]

IMAGE = "localhost/stoker-test-python:1"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "stoker-test-images"
_PROGRAMS = ("podman", "runc", "debootstrap", "tar")
# Where these are not said, older podmans ask for more than a machine without all rights gives them.
_CONTAINERS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_STORAGE = '[storage]\ndriver = "{driver}"\nrunroot = "{root}/run"\ngraphroot = "{root}/graph"\n'


def container_engine(workspace: Workspace) -> Engine:
    """An engine whose containers are of the test's image; skips the test where there can be none."""
    ready()
    return ContainerEngine(Target("box", DOCKER, {"engine": "podman", "image": IMAGE}), workspace)


def ready() -> None:
    """Have podman and the image, or skip the test with the reason."""
    reason = _made_ready()
    if reason:
        pytest.skip(reason)


def variables() -> dict[str, str]:
    """The variables by which the sessions of an sshd find this podman and its image, or skip the test."""
    ready()
    return {
        name: os.environ[name] for name in ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "BUILDAH_ISOLATION")
    }


@functools.cache
def _made_ready() -> str:
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)}: not on this machine; apt install podman runc debootstrap"
    if os.geteuid() != 0:
        return "debootstrap needs root"
    root = Path(tempfile.mkdtemp(prefix="stoker-podman-"))
    (root / "containers.conf").write_text(_CONTAINERS)
    os.environ["CONTAINERS_CONF"] = str(root / "containers.conf")
    os.environ["CONTAINERS_STORAGE_CONF"] = str(root / "storage.conf")
    os.environ["BUILDAH_ISOLATION"] = "chroot"
    atexit.register(_end_processes, root)
    problem = ""
    for driver in ("overlay", "vfs"):
        (root / "storage.conf").write_text(_STORAGE.format(driver=driver, root=root))
        problem = _imported()
        if not problem:
            break
    return problem


def _imported() -> str:
    """Make the image and start a container of it; returns why that cannot be."""
    archive = _CACHE / "debian-python.tar"
    for command in (
        ["podman", "import", str(archive), IMAGE],
        ["podman", "run", "--rm", IMAGE, "python3", "-c", "print(1)"],
    ):
        if not archive.exists():
            _debootstrap(archive)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            return f"{' '.join(command[:2])}: {done.stderr.strip()[-200:]}"
    return ""


def _debootstrap(archive: Path) -> None:
    """Make the archive of the image, once for all tests to come: it takes a minute."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stoker-debootstrap-") as folder:
        root, staged = Path(folder) / "root", archive.with_suffix(f".{os.getpid()}")
        include = "--include=python3,ca-certificates"
        for command in (
            ["debootstrap", "--variant=minbase", include, "bookworm", root],
            ["rm", "-rf", root / "var/cache/apt/archives"],
            ["tar", "-C", root, "-cf", staged, "."],
        ):
            subprocess.run(command, check=True, capture_output=True, timeout=600)
        staged.rename(archive)


def _end_processes(root: Path) -> None:
    subprocess.run(["podman", "rm", "--force", "--all"], capture_output=True, check=False)
    subprocess.run(["umount", root / "graph" / "overlay"], capture_output=True, check=False)
    shutil.rmtree(root, ignore_errors=True)
