"""Tiny Python packages for tests of environments: wheels made on the spot, so that no index is needed."""

from __future__ import annotations

import zipfile
from pathlib import Path

__all__ = ["write_wheel"]


def write_wheel(folder: Path, name: str, version: str, text: str = "") -> Path:
    """Write a wheel with one module, which has `VERSION` and then `text`; returns the wheel.

    Args:
        folder: Where to, made if it is missing; installers are pointed at it by `--find-links`.
        name: Name of the distribution, and of its module but for dashes.
        version: Its version.
        text: Further lines of the module.
    """
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}.py": f"VERSION = {version!r}\n{text}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in {**files, f"{info}/RECORD": record}.items():
            # One moment for all, so that the same wheel has the same bytes.
            archive.writestr(zipfile.ZipInfo(path), content)
    return wheel
