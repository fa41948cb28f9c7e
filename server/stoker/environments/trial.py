"""The trial of an environment: its packages are imported, because versions that resolve may still not work."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stoker.errors import EnvironmentUnusable
from stoker.system.wording import format_count

if TYPE_CHECKING:
    # Imported at runtime, it would cost every command a fifth of a second.
    from stoker.environments.specification import Specification

_NO_LIBRARY: Final = "cannot open shared object file"
_FOR_NUMPY_1: Final = ("numpy.dtype size changed", "compiled using NumPy 1.x")
LIST_LIBRARIES: Final = ("sh", "-c", "ldconfig -p; /sbin/ldconfig -p; ls /usr/local/cuda*/lib64; true")
"""The command that lists the shared libraries of a machine."""


def import_script(modules: Iterable[str]) -> str:
    """Return the code that imports modules, each on a line of its own."""
    return "".join(f"import {module}\n" for module in modules)


def import_failed(specification: Specification, output: str, where: str = "") -> EnvironmentUnusable:
    """Return the error for an environment whose trial has failed.

    Args:
        output: The output of Python; its last line says why.
        where: Where it was installed, if not here.
    """
    reason = (output.strip().splitlines() or ["it ended without a word"])[-1]
    installed = f"installed {where}" if where else "installed"
    # No package of Python of any date brings it.
    library = (
        "; that is a library of the system: install it there, or run in a container whose image has it (--image)"
        if _NO_LIBRARY in reason
        else ""
    )
    old = "; they were made for numpy 1: write numpy<2 into the file" if _is_for_numpy_1(output) else ""
    return EnvironmentUnusable(
        f"the packages of {specification.path.name} were {installed}, but cannot be imported: {reason}{library}{old}"
    )


def _is_for_numpy_1(output: str) -> bool:
    return any(sign in output for sign in _FOR_NUMPY_1)


def check_imports(specification: Specification, python: Path, site_packages: Path) -> None:
    """Import each package that a file names in its environment: versions that resolve may still not work together.

    Raises:
        EnvironmentUnusable: One cannot be imported; the message says why.
    """
    # Imported here: they would cost every command a fifth of a second.
    from stoker.environments.specification import named_packages
    from stoker.environments.variables import variables_for
    from stoker_base.package_modules import importable_modules

    modules = importable_modules(str(site_packages), named_packages(specification))
    if not modules:
        return
    tried = subprocess.run(
        [python, "-c", import_script(modules)],
        env={**variables_for(python, os.environ), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        stdin=subprocess.DEVNULL,
        # Not where a file of the user's may have the name of a package.
        cwd=site_packages,
    )
    if tried.returncode != 0:
        raise import_failed(specification, tried.stderr)


def frameworks_without_gpus(
    gpus: int, packages: Mapping[str, str], ask: Callable[[Sequence[str]], str]
) -> list[str]:
    """Say which installed frameworks will not use the GPUs that a run holds, a line each.

    Their packages tell, so none of them is imported, which would take seconds.

    Args:
        ask: Runs a command on the machine of the script, and returns its output.
    """
    if not gpus:
        return []
    held = f"the run holds {format_count(gpus, 'GPU')}, which {{}} will not use"
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
