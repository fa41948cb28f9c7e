"""Which engine serves which type of compute target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from stoker.errors import InvalidSettings
from stoker.targets.definitions import DOCKER, LOCAL, SSH, Target
from stoker.targets.engine import Engine
from stoker.targets.local import LocalEngine
from stoker.workspace import Workspace

__all__ = ["engine_of"]


def _ssh(target: Target, workspace: Workspace) -> Engine:
    try:
        # Not above: runs on this machine need no SSH.
        from stoker.targets.ssh.engine import SshEngine
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "asyncssh":
            raise
        raise InvalidSettings(
            f"the compute target {target.name} needs asyncssh, which is not installed: pip install 'stoker[ssh]'"
        ) from error
    return SshEngine(target, workspace)


def _container(target: Target, workspace: Workspace) -> Engine:
    # Not above: runs on this machine need nothing of it.
    from stoker.targets.container import ContainerEngine

    return ContainerEngine(target, workspace)


_ENGINES: Final[Mapping[str, Callable[[Target, Workspace], Engine]]] = {
    LOCAL: LocalEngine,
    DOCKER: _container,
    SSH: _ssh,
}


def engine_of(target: Target, workspace: Workspace) -> Engine:
    """Return a new engine of a compute target."""
    return _ENGINES[target.type](target, workspace)
