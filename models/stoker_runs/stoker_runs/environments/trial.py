"""The trial of a run's environment: its packages are imported, for what resolves may still fit nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from stoker.errors import EnvironmentUnusable

if TYPE_CHECKING:
    # Imported at runtime, it would cost every command a fifth of a second.
    from stoker.environments.specification import Specification

_NO_LIBRARY: Final = "cannot open shared object file"
LIST_LIBRARIES: Final = ("sh", "-c", "ldconfig -p; /sbin/ldconfig -p; ls /usr/local/cuda*/lib64; true")
"""The command that lists the shared libraries of a machine."""


def import_script(modules: Iterable[str]) -> str:
    """Return the code that imports modules, each on a line of its own."""
    return "".join(f"import {module}\n" for module in modules)


def import_failed(specification: Specification, output: str, where: str = "") -> EnvironmentUnusable:
    """Return the error for an environment whose trial has failed.

    Args:
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


def frameworks_without_gpus(
    gpus: int, packages: Mapping[str, str], ask: Callable[[Sequence[str]], str]
) -> list[str]:
    """Say which installed frameworks will not use the GPUs that a run holds, a line each.

    Their packages tell, so none of them is imported, which would take seconds.

    Args:
        ask: Runs a command where the script is to run, and returns what it prints.
    """
    if not gpus:
        return []
    held = f"the run holds {gpus} GPU{'s' * (gpus > 1)}, which {{}} will not use"
    lines = []
    if "tensorflow-cpu" in packages and "tensorflow" not in packages:
        lines.append(f"{held.format('tensorflow-cpu')}: ask for tensorflow[and-cuda] instead")
    if "+cpu" in packages.get("torch", ""):
        torch = f"torch {packages['torch']}"
        lines.append(f"{held.format(torch)}: ask for torch without +cpu, from an index with CUDA")
    if "jax" in packages and not any(name.startswith(("jax-cuda", "jax-rocm")) for name in packages):
        lines.append(f"{held.format('jax ' + packages['jax'])}: ask for jax[cuda12]")
    has_cudnn = any(name.startswith("nvidia-cudnn") for name in packages)
    if "tensorflow" in packages and not has_cudnn and "libcudnn" not in ask(LIST_LIBRARIES):
        tensorflow = f"tensorflow {packages['tensorflow']}"
        lines.append(
            f"{held.format(tensorflow)}: neither its packages nor the machine have CUDA and cuDNN; ask for "
            "tensorflow[and-cuda]"
        )
    return lines
