"""What an environment takes from the server: where its packages are, and which of them a device process needs."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["OLDEST_NUMPY", "device_needs", "server_paths"]

OLDEST_NUMPY: Final = "1.26"
"""The oldest numpy with which a device process runs."""
# What only the frontends and the commands import.
_NOT_FOR_DEVICES: Final = {"stoker-client", "starlette", "uvicorn", "uvloop", "httptools", "tqdm"}
_RUNTIMES: Final = {"onnx": ("onnxruntime", "onnxruntime-gpu"), "tensorflow": ("tensorflow",)}


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


def device_needs(framework: str) -> tuple[str, ...]:
    """What the device process of a framework imports, as requirements."""
    runtimes = {name for names in _RUNTIMES.values() for name in names}
    wanted = set(_RUNTIMES.get(framework, ()))
    chosen = []
    for text in metadata.requires("stoker") or ():
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        extra = "tensorflow" if "tensorflow" in wanted else ""
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if applies and name not in _NOT_FOR_DEVICES and (name not in runtimes or name in wanted):
            specifier = f">={OLDEST_NUMPY}" if name == "numpy" else str(requirement.specifier)
            chosen.append(f"{name}{specifier}")
    return tuple(sorted(chosen))
