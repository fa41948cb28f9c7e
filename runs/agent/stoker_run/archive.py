"""The one file that travels with a run: agent, base and faces as a zip that Python can run and import from."""

import functools
import io
import re
from pathlib import Path
from typing import Dict, Optional

import stoker_base

_PACKAGE = Path(__file__).parent
# A folder that a porter has unpacked is named by the digest of its zip.
_UNPACKED = re.compile(r"[0-9a-f]{64}$")
_TIME = (1980, 1, 1, 0, 0, 0)
_MAIN = b"import sys\nfrom stoker_run.__main__ import main\nsys.exit(main())\n"


def _metadata() -> Dict[str, bytes]:
    """Return the metadata by which MLflow finds its plug-in on Python's path."""
    from stoker_run import __version__

    folder = f"stoker_run-{__version__}.dist-info/"
    lines = f"Metadata-Version: 2.1\nName: stoker-run\nVersion: {__version__}\n"
    points = "[mlflow.tracking_store]\nstoker = stoker_run.mlflow_store:Store\n"
    return {
        folder + "METADATA": lines.encode("ascii"),
        folder + "entry_points.txt": points.encode("ascii"),
        folder + "RECORD": b"",
    }


def _entries() -> Dict[str, bytes]:
    """Names and content of all files. What is in `faces/` stands beside the package, under names of its own."""
    found = _metadata()
    found["__main__.py"] = _MAIN
    for package in (_PACKAGE, Path(stoker_base.__file__).parent):
        for path in package.rglob("*.py"):
            parts = path.relative_to(package).parts
            if "__pycache__" not in parts:
                name = "/".join(parts[1:] if parts[0] == "faces" else (package.name, *parts))
                found[name] = path.read_bytes()
    return found


def archive_bytes() -> bytes:
    """The zip: the same bytes from the same sources."""
    running = _running()
    if running is not None:
        return running.read_bytes()
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(_entries().items()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def digest() -> str:
    """Return the SHA-256 of the zip, in hexadecimal."""
    import hashlib

    return hashlib.sha256(archive_bytes()).hexdigest()


def write_archive(path: Path) -> None:
    """Write the zip.

    Raises:
        OSError: It cannot be written.
    """
    Path(path).write_bytes(archive_bytes())


def unpack(folder: Path) -> None:
    """Write the files of the zip into a folder: older importers find no plug-in in a zip.

    Raises:
        OSError: They cannot be written.
    """
    paths = {Path(folder, name): content for name, content in read_entries().items()}
    for parent in {path.parent for path in paths}:
        parent.mkdir(parents=True, exist_ok=True)
    for path, content in paths.items():
        path.write_bytes(content)


@functools.lru_cache(maxsize=1)
def read_entries() -> Dict[str, bytes]:
    """Return the names and contents of the zip's files, which a process reads once."""
    running = _running()
    if running is None:
        # To make a zip of the files, only to unpack it, takes longer than all else at the start of an agent.
        return _entries()
    import zipfile

    with zipfile.ZipFile(str(running)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _running() -> Optional[Path]:
    """The zip that this module was loaded from, or that lies beside the folder to which it was unpacked."""
    for entry in _PACKAGE.parents:
        if entry.suffix == ".zip" and entry.is_file():
            return entry
    folder = _PACKAGE.parent
    beside = folder.with_name(folder.name + ".zip")
    return beside if _UNPACKED.match(folder.name) and beside.is_file() else None
