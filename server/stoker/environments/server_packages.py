"""The packages that an environment takes from the server: their folders, and those of a device process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stoker.environments.package_names import EQUIVALENTS
from stoker.system.extras import onnx_extra, requirements

OLDEST_NUMPY: Final = "1.26"
"""The oldest numpy with which a device process runs."""
_PACKAGES: Final = (
    "stoker",
    "stoker_azure",
    "stoker_base",
    "stoker_cluster",
    "stoker_run",
    "stoker_runs",
    "stoker_torchserve",
)
"""The packages that entry scripts may import; only the first is always installed."""
_STAND_INS: Final = "stoker-azure"
"""The distribution that provides Azure's packages for entry scripts."""
# Packages that only the frontends and the commands import, and those that a build links from here.
_NOT_FOR_DEVICES: Final = {
    "stoker-base",
    "stoker-client",
    "stoker-cluster",
    "stoker-run",
    "stoker-runs",
    "stoker-torchserve",
    "stoker",
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


def package_folders() -> tuple[str, ...]:
    """The folders of Stoker's packages that are installed here."""
    specs = (find_spec(package) for package in _PACKAGES)
    return tuple(str(Path(spec.origin).parent) for spec in specs if spec is not None and spec.origin)


def write_entry_points(folder: Path) -> None:
    """Describe, in a folder of packages, the distribution whose entry points an entry script needs."""
    try:
        distribution = metadata.distribution(_STAND_INS)
    except metadata.PackageNotFoundError:
        return
    described = folder / f"{_STAND_INS.replace('-', '_')}-{distribution.version}.dist-info"
    described.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (described / name).write_text(distribution.read_text(name) or "", encoding="utf-8")


def device_requirements(framework: str, installed: Collection[str] = ()) -> tuple[str, ...]:
    """Return the requirements of a framework's device process; of ONNX Runtime the build that is here.

    Args:
        installed: Normalised names of packages that are installed beside these. A package that one of them stands
            for is left out: two builds of one package overwrite each other.
    """
    runtimes = {"onnx": onnx_extra(), "tensorflow": "tensorflow"}
    wanted = requirements()
    if framework in runtimes:
        wanted += requirements(runtimes[framework])
    wanted += _needs_of_stand_ins()
    chosen = []
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        others = {other for names in EQUIVALENTS if name in names for other in names - {name}}
        if name not in _NOT_FOR_DEVICES and others.isdisjoint(installed):
            specifier = f">={OLDEST_NUMPY}" if name == "numpy" else str(requirement.specifier)
            chosen.append(f"{name}{specifier}")
    return tuple(sorted(chosen))


def _needs_of_stand_ins() -> list[Requirement]:
    try:
        return [Requirement(text) for text in metadata.requires(_STAND_INS) or ()]
    except metadata.PackageNotFoundError:
        return []
