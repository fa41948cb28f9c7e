"""Builds the puppet of CUDA, under the names of CUDA's libraries."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.gpu.facts import library_folders

__all__ = ["built_puppet"]

_SOURCE = Path(__file__).with_name("puppet_cuda.c")
# As programs ask for that are linked with NVIDIA's.
_VERSION = "libcudart.so.12 { global: *; };"


def built_puppet(folder: Path) -> Path:
    """Return a folder of libraries, to be named by `LD_LIBRARY_PATH`; skips the test where there cannot be one."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip(reason="there is no C compiler for the puppet of CUDA")
    if any(list(place.glob("libcudart.so.*")) for place in library_folders(sys.path)):
        pytest.skip(reason="CUDA's runtime is installed, which servers find before the puppet")
    versions, library = folder / "versions", folder / "libcuda.so.1"
    versions.write_text(_VERSION)
    subprocess.run(
        [
            *(compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, _SOURCE),
            *(f"-Wl,--version-script={versions}", "-lrt"),
        ],
        check=True,
    )
    for name in ("libcudart.so.12", "libcudart.so.13"):
        (folder / name).symlink_to(library)
    return folder
