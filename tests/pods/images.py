"""Images made of this machine: its Python, the packages that a server needs, and the libraries that these need.

All lies in the image where it lies here, so nothing has to be found anew. It takes no registry and no daemon, and has
no shell. What speaks with GPUs is left out: the pods compute on CPUs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.cluster import tools

__all__ = ["SERVE", "Layer", "further", "layer", "packages", "sandbox", "server", "write_archive"]

SERVE: Final = (str(Path(sys.prefix) / "bin/stoker"), "serve")
"""The command of the server's containers."""

_REPOSITORY: Final = Path(__file__).parents[2]
_EXTRAS: Final = frozenset({"gpu", "azure", "grpc", "cluster", "router"})
_NOT_OF_PYTHON: Final = re.compile(
    r"(test|idlelib|tkinter|turtledemo|ensurepip|lib2to3|config-3.*|site-packages)"
)
# Libraries for GPUs, and files for compilers.
_NOT_INSTALLED: Final = re.compile(
    r"libonnxruntime_providers_(cuda|tensorrt)|/tensorflow/include/|/clang/native/"
)
_SOURCES: Final = (
    "server/stoker",
    "server/stoker_cluster/stoker_cluster",
    "runs/stoker_runs",
    "azure-ml/stoker_azure",
    "clients/stoker_client",
    "server/stoker_base/stoker_base",
    "runs/agent/stoker_run",
)
_LOADED: Final = re.compile(r"(?:=>\s+)?(/\S+) \(0x")
_USERS: Final = "root:x:0:0::/:/sbin/nologin\nstoker:x:10001:10001::/tmp:/sbin/nologin\n"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of images: a tar that is not compressed."""

    file: Path

    @property
    def digest(self) -> str:
        """Its content's hash, its name for those who have it."""
        with self.file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()


def sandbox(folder: Path) -> Layer:
    """Return the layer of what holds the namespaces of a pod."""
    return layer(folder / "pause.tar", {Path("/pause"): tools.folder() / "pause"})


def packages() -> Layer:
    """Return the layer with Python and the packages that all pods have."""
    return _kept("packages", _closure("stoker", _EXTRAS), _python)


def further(extra: str) -> Layer:
    """Return the layer with what another extra of the server needs beside that."""
    return _kept(extra, _closure("stoker", _EXTRAS | {extra}) - _closure("stoker", _EXTRAS), dict)


def _kept(kind: str, distributions: set[str], more: Callable[[], dict[Path, Path]]) -> Layer:
    """Return a layer of distributions, kept from one run to the next as long as they are the same."""
    versions = sorted(f"{name}={importlib.metadata.version(name)}" for name in distributions)
    state = repr((sys.version, sys.prefix, versions, Path(__file__).read_bytes()))
    name = f"{kind}-{hashlib.sha256(state.encode()).hexdigest()[:16]}.tar"
    file = tools.folder().parent / "images" / name
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        for old in file.parent.glob(f"{kind}-{'[0-9a-f]' * 16}.tar"):
            old.unlink()
        made = layer(file.with_suffix(f".{os.getpid()}"), more() | _installed(distributions))
        made.file.rename(file)
    return Layer(file)


def server(folder: Path) -> Layer:
    """Return the layer with the code of the server as it is now."""
    sources = (path for name in _SOURCES for path in (_REPOSITORY / name).rglob("*"))
    files = {path: path for path in sources if "__pycache__" not in path.parts}
    return layer(folder / "server.tar", files)


def write_archive(archive: Path, images: Mapping[str, Sequence[Layer]], entrypoint: Sequence[str]) -> Path:
    """Write images, by their names, as `ctr images import` takes them; layers that they share are there once."""
    manifest: list[dict[str, Any]] = []
    with tarfile.open(archive, "w") as tar:
        known: set[str] = set()
        for name, layers in images.items():
            digests = [layer.digest for layer in layers]
            for layer, digest in zip(layers, digests, strict=True):
                if digest not in known:
                    known.add(digest)
                    tar.add(layer.file, f"{digest}.tar")
            config = json.dumps(_config(digests, entrypoint)).encode()
            config_name = f"{hashlib.sha256(config).hexdigest()}.json"
            _add(tar, config_name, config)
            layer_names = [f"{digest}.tar" for digest in digests]
            manifest.append({"Config": config_name, "RepoTags": [name], "Layers": layer_names})
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return archive


def _config(digests: Sequence[str], entrypoint: Sequence[str]) -> dict[str, Any]:
    path = f"{Path(sys.prefix) / 'bin'}:/usr/bin:/bin"
    return {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": [f"PATH={path}"], "User": "10001:10001"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }


def _python() -> dict[Path, Path]:
    """The interpreter with its library, and the environment that points at it."""
    base, environment = Path(sys.base_prefix), Path(sys.prefix)
    library = Path(sysconfig.get_path("stdlib"))
    files = {
        path: path
        for path in library.rglob("*")
        if not _NOT_OF_PYTHON.fullmatch(path.relative_to(library).parts[0])
    }
    files |= {path: path for path in (environment / "bin").glob("python*") if path.is_symlink()}
    files |= {environment / name: environment / name for name in ("pyvenv.cfg", "bin/stoker")}
    executable = Path(os.path.realpath(sys.executable))
    return {**files, executable: executable, base / "bin/python3": base / "bin/python3"}


def _installed(distributions: Iterable[str]) -> dict[Path, Path]:
    files: dict[Path, Path] = {}
    for name in distributions:
        for file in importlib.metadata.distribution(name).files or ():
            path = Path(os.path.normpath(file.locate()))
            if path.is_file() and not _NOT_INSTALLED.search(str(path)):
                files[path] = path
    return files


def _closure(name: str, extras: frozenset[str], known: dict[str, frozenset[str]] | None = None) -> set[str]:
    """A distribution and all its requirements among the installed ones."""
    known = {} if known is None else known
    if extras <= known.get(name, frozenset()) and name in known:
        return set(known)
    known[name] = known.get(name, frozenset()) | extras
    for text in importlib.metadata.requires(name) or ():
        need = Requirement(text)
        conditions = (
            need.marker is None,
            *(need.marker.evaluate({"extra": one}) for one in ("", *extras) if need.marker),
        )
        if any(conditions):
            _closure(canonicalize_name(need.name), frozenset(need.extras), known)
    return set(known)


def _libraries(files: Iterable[Path]) -> dict[Path, Path]:
    """The system's libraries that programs and modules load."""
    programs = [file for file in files if file.is_file() and _is_elf(file)]
    # It fails for files whose libraries are left out, after it has printed all others.
    output = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    found = {Path(os.path.normpath(path)) for path in _LOADED.findall(output)}
    return {path: Path(os.path.realpath(path)) for path in found if path.exists()}


def _is_elf(file: Path) -> bool:
    with file.open("rb") as content:
        return content.read(4) == b"\x7fELF"


def layer(file: Path, contents: Mapping[Path, Path | bytes]) -> Layer:
    """Write a layer that any user may read, from files here or from bytes."""
    paths = [source for source in contents.values() if isinstance(source, Path)]
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar:
        # Installers link files of their caches: the same one under two names is two files there.
        tar.inodes = {}
        every = {**_libraries(paths), **contents}
        folders = {parent for path in every for parent in path.parents} | {Path("/tmp"), Path("/workspace")}
        for folder in sorted(folders - {Path("/")}):
            info = tarfile.TarInfo(str(folder).lstrip("/"))
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        _add(tar, "etc/passwd", _USERS.encode())
        for path, source in sorted(every.items()):
            if isinstance(source, bytes):
                _add(tar, str(path).lstrip("/"), source)
            elif source.is_symlink() or source.is_file():
                tar.add(source, str(path).lstrip("/"), recursive=False, filter=_readable)
    return Layer(file)


def _readable(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    return info


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    tar.addfile(info, io.BytesIO(content))
