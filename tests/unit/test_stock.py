"""What a server writes to its workspace before it loads a model, and what happens where nothing can be written."""

from pathlib import Path

import pytest
from tests.puppets import ROWS
from tests.tiny_models import write_doubler

from stoker.deployment import Deployed
from stoker.errors import InvalidSettings
from stoker.placement import place
from stoker.servable import Servable
from stoker.serving import _sample_file
from stoker.settings import ModelSettings, ServerSettings
from stoker.start_up import ModelReport
from stoker.stock import Stock
from stoker.workspace import Workspace

KEY = "0123456789abcdef"


def take(tmp_path: Path, workspace: Workspace, primary_key: str | None = None) -> None:
    model = ModelSettings(path=write_doubler(tmp_path / "doubler.onnx"), device=("cpu",))
    settings = ServerSettings(models=(model,), primary_key=primary_key)
    with Stock(settings, workspace, print) as stock:
        stock.take_first()


def test_keys_of_a_new_workspace_are_out_of_gits_sight(tmp_path: Path) -> None:
    """The first server in a folder makes the keys, and with them the whole workspace."""
    workspace = Workspace(tmp_path / "new")
    take(tmp_path, workspace)
    assert (workspace.keys_dir / "doubler.keys").exists()
    assert (workspace.root / ".gitignore").read_text() == "*\n"


def test_keys_need_a_workspace_that_can_be_written(tmp_path: Path) -> None:
    """The message says what to do; with keys from outside nothing has to be written."""
    (tmp_path / "file").touch()
    workspace = Workspace(tmp_path / "file" / "workspace")
    with pytest.raises(InvalidSettings, match=r"keys of doubler cannot be kept in .*: File exists; choose"):
        take(tmp_path, workspace)
    take(tmp_path, workspace, KEY)


def test_no_sample_is_shown_where_none_can_be_written(tmp_path: Path) -> None:
    """It is a convenience: a server that is ready does not end for it."""
    (tmp_path / "file").touch()
    servable = Servable("digits", 1, "onnx", Path("x"), tmp_path, max_batch_rows=4, max_body_bytes=64)
    placement = place(["cpu"], 1, cores=1)
    deployed = Deployed(servable, 0, max_delay_ms=0.0, placement=placement, threads=1, timeout_ms=1000)
    report = ModelReport(deployed, ROWS, ["cpu"], 0.5, 0.25)
    assert _sample_file(Workspace(tmp_path / "file" / "workspace"), report) is None
    assert _sample_file(Workspace(tmp_path / "there"), report) is not None
