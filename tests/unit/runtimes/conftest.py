"""Scripts as deployments."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.deployment import Deployment
from stoker.scripts.call_watchdog import Watchdog

Write = Callable[..., Deployment]


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a script and return it as a deployment; what loading does to the process is undone afterwards."""
    environ = {name: value for name, value in os.environ.items() if name != "AML_APP_ROOT"}
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # A thread that lives as long as the process would watch for all tests that follow.
    monkeypatch.setattr(Watchdog, "start", lambda self: None)

    def write(text: str, max_batch_rows: int = 8) -> Deployment:
        script = tmp_path / "score.py"
        script.write_text(text)
        return Deployment("digits", 1, "script", script, tmp_path, max_batch_rows, 1000)

    yield write
    sys.modules.pop("entry_module", None)
