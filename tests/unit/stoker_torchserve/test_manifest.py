"""`MAR-INF/MANIFEST.json` of TorchServe's archives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import InvalidSettings
from stoker_torchserve.manifest import MANIFEST_FILE, read_manifest

MNIST: dict[str, Any] = {
    "createdOn": "27/11/2025 10:00:00",
    "runtime": "python",
    "model": {
        "modelName": "mnist",
        "serializedFile": "mnist_cnn.pt",
        "handler": "mnist_handler.py:Digits",
        "modelFile": "mnist.py",
        "modelVersion": "1.0",
    },
    "archiverVersion": "0.12.0",
}


def write(folder: Path, document: object, *files: str) -> Path:
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / MANIFEST_FILE).write_text(json.dumps(document), encoding="utf-8")
    for name in files:
        (folder / name).write_bytes(b"")
    return folder


def test_a_manifest_is_read(tmp_path: Path) -> None:
    """All its fields, and the whole of it for handlers."""
    folder = write(tmp_path / "mnist", MNIST, "mnist_cnn.pt", "mnist_handler.py", "mnist.py")
    found = read_manifest(folder)
    assert (found.model_name, found.model_version, found.handler) == (
        "mnist",
        "1.0",
        "mnist_handler.py:Digits",
    )
    assert (found.serialized_file, found.model_file, found.requirements_file) == (
        "mnist_cnn.pt",
        "mnist.py",
        "",
    )
    assert found.document == MNIST


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modelName": None}, "model.modelName has to be a text"),
        ({"handler": ""}, "model.handler has to be a text"),
        ({"serializedFile": "/etc/passwd"}, "model.serializedFile: /etc/passwd is not a file of the archive"),
        ({"modelFile": "../m.py"}, r"model.modelFile: \.\./m.py is not a file of the archive"),
        ({"configFile": "c.yaml"}, "configFile is c.yaml, which is not in the archive"),
    ],
)
def test_invalid_manifest_field_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """The error names the field, and no file outside the archive is read."""
    document = {**MNIST, "model": {**MNIST["model"], **change}}
    folder = write(tmp_path / "m", document, "mnist_cnn.pt", "mnist_handler.py", "mnist.py")
    with pytest.raises(InvalidSettings, match=message):
        read_manifest(folder)


def test_other_things_are_no_archive(tmp_path: Path) -> None:
    """A folder without a manifest, one that is no JSON, one of Java."""
    with pytest.raises(InvalidSettings, match="it is no archive of TorchServe"):
        read_manifest(tmp_path)
    with pytest.raises(InvalidSettings, match="needs an object named model"):
        read_manifest(write(tmp_path / "list", []))
    with pytest.raises(InvalidSettings, match="only archives for Python"):
        read_manifest(write(tmp_path / "java", {**MNIST, "runtime": "LSP"}))
