"""On what, and with what, a run was made; every report says it."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

__all__ = ["describe_machine"]

PACKAGES = ("stoker", "uvicorn", "uvloop", "httptools", "starlette", "orjson", "pysimdjson", "numpy")
RUNTIMES = ("onnxruntime-gpu", "onnxruntime")


def describe_machine() -> dict[str, str | int]:
    """Return the processor, the cores that this process may use, Python's and the packages' versions."""
    facts: dict[str, str | int] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    for package in PACKAGES + RUNTIMES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return facts


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
