"""Stoker: a GPU model-serving inference server.

Entry scripts use `stoker.batched`; everything else is reached through the `stoker` command.
"""

from stoker.batched import batched

__all__ = ["__version__", "batched"]

__version__ = "0.1.0"
