"""The trial of an environment that was built: what was named is imported, for what resolves may still fit nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from stoker.errors import EnvironmentUnusable

if TYPE_CHECKING:
    from stoker.environments.specification import Specification

__all__ = ["import_failed", "import_script", "named_packages"]


_NO_LIBRARY: Final = "cannot open shared object file"


def named_packages(specification: Specification) -> set[str]:
    """Return the normalised names of the packages that are asked for by name."""
    return {entry.requirement.name for entry in specification.entries if entry.requirement is not None}


def import_script(modules: Iterable[str]) -> str:
    """Return the code that imports modules, each on a line of its own."""
    return "".join(f"import {module}\n" for module in modules)


def import_failed(specification: Specification, output: str, where: str = "") -> EnvironmentUnusable:
    """Return the error for an environment whose trial has failed.

    Args:
        specification: What was asked for.
        output: What Python has written; its last line says why.
        where: Where it was installed, if not here.
    """
    said = (output.strip().splitlines() or ["it ended without a word"])[-1]
    installed = f"installed {where}" if where else "installed"
    # No package of Python brings it, of whatever date.
    library = (
        "; that is a library of the system: install it there, or run in a container whose image has it (--image)"
        if _NO_LIBRARY in said
        else ""
    )
    return EnvironmentUnusable(
        f"the packages of {specification.path.name} were {installed}, but cannot be imported: {said}{library}"
    )
