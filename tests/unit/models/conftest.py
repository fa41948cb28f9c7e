"""Fixtures of the tests of models."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stoker.models.repository import Repository
from stoker.settings.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty workspace."""
    return Workspace(tmp_path / "workspace").create()


@pytest.fixture
def repository(workspace: Workspace) -> Repository:
    """Its registered models."""
    return Repository(workspace.models_dir)


@pytest.fixture
def leases() -> Iterator[ExitStack]:
    """The versions that a test holds, until it ends."""
    with ExitStack() as stack:
        yield stack
