"""Fixtures of the tests of registered models."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from stoker.models.registered import Registered
from stoker.models.repository import Repository

NOW = datetime(2026, 10, 18, 12, 30, tzinfo=UTC)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "workspace" / "models")


@pytest.fixture
def onnx(tmp_path: Path) -> Path:
    path = tmp_path / "mnist.onnx"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A folder with an entry script, a module in a subfolder, weights and an empty folder."""
    folder = tmp_path / "digits"
    (folder / "network").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "score.py").write_text("def init(): ...\n")
    (folder / "network" / "layers.py").write_text("LAYERS = 3\n")
    (folder / "weights.bin").write_bytes(bytes(1000))
    return folder


def contents_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != ".lock")


def registered_script(repository: Repository, script: Path) -> Registered:
    return repository.register("digits", script, now=NOW)
