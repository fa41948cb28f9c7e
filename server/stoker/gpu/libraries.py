"""Where NVIDIA's Python packages have put their libraries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["library_folders"]


def library_folders(folders: Sequence[str]) -> list[Path]:
    """Return the folders of libraries below folders of packages, in the same order.

    Since CUDA 13 one folder has all but cuDNN; before, each package had one.
    """
    return [place for folder in folders for place in sorted(Path(folder, "nvidia").glob("*/lib"))]
