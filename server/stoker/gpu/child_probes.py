"""Probes of runtimes in child processes, which may crash or hang."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Final

from stoker.gpu import probes
from stoker.gpu.confinement import confine
from stoker.gpu.probes import RUNTIMES

_PROBE_TIMEOUT_S: Final = 180.0
_TENSORFLOW_LOG: Final = {
    # TensorFlow names missing libraries only in the log of its loader.
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "TF_CPP_VMODULE": "dso_loader=1",
}
_MISSING_LIBRARY: Final = re.compile(r"Could not load dynamic library '([^']+)'")


def probe_in_child(uuid: str, runtime: str) -> str | None:
    """Return why a runtime cannot use a GPU, or None if it can. A child process tries it.

    Args:
        uuid: UUID of the GPU or MIG device.
        runtime: One of `probes.RUNTIMES`; any other has no problem.
    """
    if runtime not in RUNTIMES:
        return None
    environ = {**os.environ, **_TENSORFLOW_LOG}
    confine(uuid, environ)
    command = [sys.executable, "-P", "-m", probes.__name__, runtime]
    try:
        child = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{RUNTIMES[runtime]} did not answer within {_PROBE_TIMEOUT_S:g} s"
    last_line = (child.stdout.strip().splitlines() or [""])[-1]
    try:
        problem: str | None = json.loads(last_line)["problem"]
    except (ValueError, KeyError, TypeError):
        reason = (child.stderr.strip().splitlines() or ["no output"])[-1]
        return f"{RUNTIMES[runtime]} {_describe_end(child.returncode)}: {reason}"
    missing = dict.fromkeys(_MISSING_LIBRARY.findall(child.stderr))
    if problem is not None and missing and runtime == "tensorflow":
        return f"{problem}; it did not find {', '.join(missing)}"
    return problem


def _describe_end(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
