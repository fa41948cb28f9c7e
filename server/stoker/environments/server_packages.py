"""What an environment takes from the server: where its packages are, and which of them a device process needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection
from typing import Final

from packaging.utils import canonicalize_name

from stoker.environments.package_names import EQUIVALENTS
from stoker.system.extras import onnx_extra, requirements

__all__ = ["OLDEST_NUMPY", "device_needs", "server_paths"]

OLDEST_NUMPY: Final = "1.26"
"""The oldest numpy with which a device process runs."""
# What only the frontends and the commands import.
_NOT_FOR_DEVICES: Final = {
    "stoker-client",
    "stoker-run",
    "starlette",
    "uvicorn",
    "uvloop",
    "httptools",
    "tqdm",
}


def server_paths() -> tuple[str, ...]:
    """Where this interpreter finds packages, in order, without the standard library and the working directory."""
    standard = _search_path("-I", "-S")
    return tuple(path for path in _search_path("-P") if path not in standard)


def _search_path(*options: str) -> list[str]:
    program = "import json, sys; print(json.dumps(sys.path))"
    # A sitecustomize may print: the path is the last line.
    output = subprocess.run(
        [sys.executable, *options, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    paths: list[str] = json.loads(output.splitlines()[-1])
    return paths


def device_needs(framework: str, asked: Collection[str] = ()) -> tuple[str, ...]:
    """What the device process of a framework imports, as requirements; of ONNX Runtime the build that is here.

    Args:
        framework: Framework of the model.
        asked: Normalised names of packages that are installed beside these. What one of them stands for is left
            out: two builds of one package overwrite each other.
    """
    runtimes = {"onnx": onnx_extra(), "tensorflow": "tensorflow"}
    wanted = requirements()
    if framework in runtimes:
        wanted += requirements(runtimes[framework])
    chosen = []
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        others = {other for names in EQUIVALENTS if name in names for other in names - {name}}
        if name not in _NOT_FOR_DEVICES and others.isdisjoint(asked):
            specifier = f">={OLDEST_NUMPY}" if name == "numpy" else str(requirement.specifier)
            chosen.append(f"{name}{specifier}")
    return tuple(sorted(chosen))
