"""The engine for each type of compute target."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace
from stoker.system.extras import how_to_install
from stoker_runs.targets.definitions import AMLCOMPUTE, DOCKER, KUBERNETES, LOCAL, RAY, SPARK, SSH, Target
from stoker_runs.targets.engine import Engine


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


_ENGINES: Final[Mapping[str, tuple[str, str]]] = {
    AMLCOMPUTE: ("local", "LocalEngine"),
    LOCAL: ("local", "LocalEngine"),
    DOCKER: ("container", "ContainerEngine"),
    KUBERNETES: ("kubernetes.engine", "KubernetesEngine"),
    RAY: ("ray.engine", "RayEngine"),
    SPARK: ("ssh.engine", "SshEngine"),
    SSH: ("ssh.engine", "SshEngine"),
}
"""The module and the class of each type's engine; runs on this machine import nothing of the others."""
_EXTRAS: Final = {"asyncssh": "ssh", "stoker_cluster": "cluster"}
"""The extra of each package that an engine needs besides."""


def engine_of(target: Target, workspace: Workspace) -> Engine:
    """Return a new engine of a compute target."""
    module, name = _ENGINES[target.type]
    try:
        with no_compiler_for_libraries() if target.type in (SPARK, SSH) else contextlib.nullcontext():
            kind = getattr(import_module(f"stoker_runs.targets.{module}"), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        shown, how = package.replace("_", "-"), how_to_install(_EXTRAS[package])
        raise InvalidSettings(
            f"the compute target {target.name} needs {shown}, which is not installed; {how}"
        ) from error
    engine: Engine = kind(target, workspace)
    return engine
