"""Archives as TorchServe's archiver writes them."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker_torchserve.handlers import HandlerRun
from stoker_torchserve.ts_imports import uninstall

MANIFEST = "MAR-INF/MANIFEST.json"

ECHO_HANDLER = """
from ts.utils.util import PredictionException


def handle(data, context):
    if data is None:
        context.loaded = context.manifest["model"]["modelName"]
        return None
    return [answer(row, context, place) for place, row in enumerate(data)]


def answer(row, context, place):
    value = row.get("data") or row.get("body")
    if isinstance(value, (bytes, bytearray)):
        value = value.decode()
    if value == "refuse":
        raise PredictionException("no such word", 404)
    if value == "fail":
        raise RuntimeError("the handler cannot do this")
    if value == "teapot":
        context.set_response_status(418, "short and stout", place)
        context.set_response_header(place, "x-pot", "tea")
        context.set_response_content_type(place, "text/plain")
        return "tea"
    return {"model": context.loaded, "got": value, "kind": type(value).__name__}
"""
"""A handler that needs no PyTorch: a function, which is initialised by a call without rows."""


def manifest_of(name: str, handler: str, **fields: Any) -> dict[str, Any]:
    """The manifest of an archive; `fields` are those of its model, such as `serializedFile`."""
    model = {"modelName": name, "handler": handler, "modelVersion": "1.0", **fields}
    return {
        "createdOn": "27/11/2025 10:00:00",
        "runtime": "python",
        "model": model,
        "archiverVersion": "0.12.0",
    }


def write_mar(folder: Path, manifest: dict[str, Any], files: dict[str, str | bytes]) -> Path:
    """Write `NAME.mar`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{manifest['model']['modelName']}.mar"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(MANIFEST, json.dumps(manifest, indent=2))
    return path


def write_tar(folder: Path, manifest: dict[str, Any], files: dict[str, str | bytes]) -> Path:
    """Write `NAME.tar.gz`, in which all lies in a folder with the model's name."""
    name = manifest["model"]["modelName"]
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, content in (*files.items(), (MANIFEST, json.dumps(manifest))):
            held = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(f"{name}/{file}")
            info.size = len(held)
            archive.addfile(info, io.BytesIO(held))
    return path


def write_folder(folder: Path, manifest: dict[str, Any], files: dict[str, str | bytes]) -> Path:
    """Write the folder `NAME`, the format `no-archive`."""
    root = folder / manifest["model"]["modelName"]
    for name, content in (*files.items(), (MANIFEST, json.dumps(manifest))):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def write_echo(folder: Path, name: str = "echo", **fields: Any) -> Path:
    """Write a `.mar` with `ECHO_HANDLER`."""
    return write_mar(
        folder, manifest_of(name, "echo_handler.py", **fields), {"echo_handler.py": ECHO_HANDLER}
    )


@contextmanager
def loaded_handler(folder: Path, device: str = "cpu") -> Iterator[HandlerRun]:
    """Load the handler of an unpacked archive as its process does, and undo what that does to a process."""
    path, modules, here = [*sys.path], set(sys.modules), Path.cwd()
    run = HandlerRun()
    try:
        run.load(folder, device=device)
        yield run
    finally:
        os.chdir(here)
        sys.path[:] = path
        uninstall()
        for name in set(sys.modules) - modules:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
                del sys.modules[name]
