"""The engine for each type of compute target."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace
from stoker.system.extras import how_to_install
from stoker_runs.targets.definitions import AMLCOMPUTE, DOCKER, KUBERNETES, LOCAL, RAY, SPARK, SSH, Target
from stoker_runs.targets.engine import Engine
from stoker_runs.targets.local import LocalEngine


@contextlib.contextmanager
def no_compiler_for_libraries() -> Iterator[None]:
    """Let `ctypes` find libraries by the system's loader only.

    asyncssh asks for one by two names when it is imported. Where it is missing, `ctypes` has a compiler and a linker
    make programs to find it: eight processes, for which each run would wait.
    """
    import ctypes.util

    ways = [name for name in ("_findLib_gcc", "_findLib_ld") if hasattr(ctypes.util, name)]
    before = {name: getattr(ctypes.util, name) for name in ways}
    for name in ways:
        setattr(ctypes.util, name, lambda _: None)
    try:
        yield
    finally:
        for name in ways:
            setattr(ctypes.util, name, before[name])


@contextlib.contextmanager
def _needing(target: Target, package: str, extra: str) -> Iterator[None]:
    """Say how to install a package where the import of an engine does not find it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package.replace("-", "_"):
            raise
        raise InvalidSettings(
            f"the compute target {target.name} needs {package}, which is not installed; {how_to_install(extra)}"
        ) from error


def _ssh(target: Target, workspace: Workspace) -> Engine:
    # Not above: runs on this machine need no SSH.
    with _needing(target, "asyncssh", "ssh"), no_compiler_for_libraries():
        from stoker_runs.targets.ssh.engine import SshEngine
    return SshEngine(target, workspace)


def _container(target: Target, workspace: Workspace) -> Engine:
    # Not above: runs on this machine need nothing of it.
    from stoker_runs.targets.container import ContainerEngine

    return ContainerEngine(target, workspace)


def _ray(target: Target, workspace: Workspace) -> Engine:
    # Not above: runs on this machine need nothing of it.
    from stoker_runs.targets.ray.engine import RayEngine

    return RayEngine(target, workspace)


def _kubernetes(target: Target, workspace: Workspace) -> Engine:
    # Not above: runs on this machine need nothing of it.
    with _needing(target, "stoker-cluster", "cluster"):
        from stoker_runs.targets.kubernetes.engine import KubernetesEngine
    return KubernetesEngine(target, workspace)


_ENGINES: Final[Mapping[str, Callable[[Target, Workspace], Engine]]] = {
    AMLCOMPUTE: LocalEngine,
    LOCAL: LocalEngine,
    DOCKER: _container,
    KUBERNETES: _kubernetes,
    RAY: _ray,
    SPARK: _ssh,
    SSH: _ssh,
}


def engine_of(target: Target, workspace: Workspace) -> Engine:
    """Return a new engine of a compute target."""
    return _ENGINES[target.type](target, workspace)
