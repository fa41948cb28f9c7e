"""The machines on which each engine has to pass `test_conformance.py`: a new engine is a line here."""

import atexit
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tests.targets.containers import IMAGE, container_engine, variables
from tests.targets.ray_dashboard import RayDashboard
from tests.targets.sshd import Sshd, why_not

from stoker.settings.workspace import Workspace
from stoker_runs.targets.definitions import Target
from stoker_runs.targets.engine import Engine
from stoker_runs.targets.registry import engine_of

__all__ = ["MACHINES", "Machine", "shared_sshd"]


@dataclass(frozen=True)
class Machine:
    """A kind of machine, how an engine for it is made, and why there can be none here; empty where there can."""

    name: str
    engine: Callable[[Workspace], Engine]
    missing: str = ""

    def __str__(self) -> str:
        return self.name


@cache
def shared_sshd() -> Sshd:
    """One server for all tests that do nothing to it."""
    return _started(Sshd(Path(mkdtemp(prefix="stoker-sshd-"))))


def _started(server: Sshd) -> Sshd:
    atexit.register(shutil.rmtree, server.folder, ignore_errors=True)
    atexit.register(server.end)
    return server.start()


def _ssh(workspace: Workspace) -> Engine:
    return engine_of(Target("ssh", "ssh", shared_sshd().settings()), workspace)


@cache
def _sshd_with_podman() -> Sshd:
    return _started(Sshd(Path(mkdtemp(prefix="stoker-sshd-")), variables=variables()))


def _containers_by_ssh(workspace: Workspace) -> Engine:
    settings = _sshd_with_podman().settings(image=IMAGE, engine="podman")
    return engine_of(Target("far-box", "ssh", settings), workspace)


@cache
def _dashboard() -> RayDashboard:
    dashboard = RayDashboard().__enter__()
    atexit.register(dashboard.__exit__)
    return dashboard


def _ray(workspace: Workspace) -> Engine:
    settings = {"address": _dashboard().address, "max_nodes": 2, "python": sys.executable}
    return engine_of(Target("ray", "ray", settings), workspace)


MACHINES = [
    Machine("local", lambda workspace: engine_of(Target("local"), workspace)),
    Machine("ray", _ray),
    Machine("ssh", _ssh, why_not()),
    Machine("docker", container_engine),
    Machine("ssh-docker", _containers_by_ssh, why_not()),
]
