"""A Chromium for tests: that of the system, or the one that npm's @sparticuz/chromium holds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

from tests.patience import PROGRAM_S

__all__ = ["AXE", "chromium"]

PACKAGES: Final = Path(sys.prefix) / "console" / "node_modules"
AXE: Final = PACKAGES / "axe-core" / "axe.min.js"
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_UNPACK: Final = (
    "import('@sparticuz/chromium').then(async (it) => console.log(await it.default.executablePath()))"
)


@cache
def chromium() -> str:
    """Path of a browser that runs here; empty if there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return found or _unpacked()


def _unpacked() -> str:
    """The binary of the package, which unpacks itself below the temporary folder; it needs the system's libnss3."""
    node = shutil.which("node", path=Path(sys.prefix) / "bin") or shutil.which("node")
    if node is None or not (PACKAGES / "@sparticuz").is_dir():
        return ""
    done = subprocess.run(
        [node, "--input-type=module", "-e", _UNPACK],
        cwd=PACKAGES.parent,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    path = done.stdout.strip()
    runs = path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0
    return path if runs else ""
