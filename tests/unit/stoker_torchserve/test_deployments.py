"""From an archive to a deployment: its folder, its settings and the operator's, its packages."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.torchserve_archives import ECHO_HANDLER, manifest_of, write_folder, write_mar

from stoker.deployment import Deployment
from stoker.errors import InvalidSettings
from stoker.models.deployments import resolve
from stoker.models.repository import Repository
from stoker.settings.model import model_settings
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker_torchserve.extension import ENTRY_SCRIPT

NAMED = manifest_of(
    "echo", "echo_handler.py", modelVersion="2.0", configFile="c.yaml", requirementsFile="needs.txt"
)
FILES: dict[str, str | bytes] = {
    "echo_handler.py": ECHO_HANDLER,
    "c.yaml": "batchSize: 8\nmaxBatchDelay: 20\nmaxWorkers: 2\ndeviceType: cpu\n",
    "needs.txt": "numpy\n",
    "sample_input.json": "{}",
}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


def deployed(workspace: Workspace, server: dict[str, Any] | None = None, **settings: Any) -> Deployment:
    model = model_settings(settings, "test")
    with ExitStack() as leases:
        (deployment,) = resolve(ServerSettings(models=(model,), **(server or {})), workspace, leases)
    return deployment


@pytest.mark.parametrize("registered", [True, False])
def test_archive_is_deployed_with_its_settings(
    tmp_path: Path, workspace: Workspace, registered: bool
) -> None:
    """Stoker's entry script runs it from its own folder, registered or not."""
    path = write_mar(tmp_path, NAMED, FILES)
    if registered:
        Repository(workspace.create().models_dir).register("echo", path, now=datetime.now(UTC))
    found = deployed(workspace, **({"registered": "echo"} if registered else {"path": str(path)}))
    assert (found.framework, found.path, found.version) == ("script", ENTRY_SCRIPT, 1 if registered else 2)
    assert found.model_dir.parent == workspace.archives_dir
    assert (found.max_batch_rows, found.batching, found.max_delay_ms, found.devices) == (
        8,
        "rows",
        20.0,
        ("cpu",),
    )
    assert found.environment == found.model_dir / "needs.txt"
    assert found.sample_file == found.model_dir / "sample_input.json"
    assert "maxWorkers is passed over" in found.notes[0]


def test_the_operators_settings_win(tmp_path: Path, workspace: Workspace) -> None:
    """Over the archive's, and the lower limit of rows counts."""
    path = write_mar(tmp_path, NAMED, FILES)
    found = deployed(workspace, {"max_batch_rows": 4}, path=str(path), batching="none", max_delay_ms=1)
    assert (found.max_batch_rows, found.batching, found.max_delay_ms) == (4, "none", 1.0)


def test_a_folder_is_served_where_it_is(tmp_path: Path, workspace: Workspace) -> None:
    """Nothing is copied."""
    folder = write_folder(tmp_path, NAMED, FILES)
    assert deployed(workspace, path=str(folder)).model_dir == folder
    assert not workspace.archives_dir.exists()


def test_a_sample_is_registered_beside_an_archive(tmp_path: Path, workspace: Workspace) -> None:
    """And is the one that counts."""
    sample = tmp_path / "mine.json"
    sample.write_text("[1]", encoding="ascii")
    repository = Repository(workspace.create().models_dir)
    repository.register("echo", write_mar(tmp_path, NAMED, FILES), now=datetime.now(UTC), sample=sample)
    found = deployed(workspace, registered="echo").sample_file
    assert found is not None
    assert found.read_text(encoding="ascii") == "[1]"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_dir": "/tmp"}, "model_dir is for those alone"),
        ({"batching": "merge"}, "batching is one of auto, rows, none, not merge"),
        ({"model_class": "a:B"}, "model_class is for those alone"),
        ({"audit": 0.5}, "audit is for models alone"),
    ],
)
def test_settings_that_are_not_for_archives_are_refused(
    tmp_path: Path, workspace: Workspace, settings: dict[str, Any], message: str
) -> None:
    """The error names them."""
    with pytest.raises(InvalidSettings, match=message):
        deployed(workspace, path=str(write_mar(tmp_path, NAMED, FILES)), **settings)
