"""Stoker: a GPU model-serving inference server.

Entry scripts use `stoker.batched`; everything else is reached through the `stoker` command.
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036  # PYTHONPATH or an environment may lead another one here
    # Before the first module that an older Python cannot read.
    raise ImportError(f"Stoker needs Python 3.11 or newer, and {sys.executable} is {sys.version.split()[0]}")

from stoker.batched import batched

__all__ = ["__version__", "batched"]

__version__ = "0.1.0"

# ONNX Runtime reports to its maker, unless this is set before its library is loaded. A server calls nobody unasked.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
