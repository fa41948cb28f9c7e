"""The modules that one model passes from the settings to its ready session."""

from __future__ import annotations

import re
from pathlib import Path

from tests.model_path import model_path

PAGE = Path(__file__).parents[2] / "server" / "docs" / "life-of-a-model.md"
MOST_MODULES = 20
MOST_CLIMBS = 5


def test_the_life_of_a_model_names_each_module_that_a_model_passes() -> None:
    """There are few of them, and control goes down: someone who follows a model reads the page from top to bottom."""
    named = {
        link.removesuffix(".py").replace("/", ".")
        for link in re.findall(r"\]\(\.\./([\w/]+\.py)\)", PAGE.read_text(encoding="utf-8"))
    }
    to_process, to_session = model_path()
    for walk in (to_process, to_session):
        assert len(walk.modules) <= MOST_MODULES, walk.modules
        assert len(walk.climbs) <= MOST_CLIMBS, walk.climbs
        assert set(walk.modules) <= named, set(walk.modules) - named
    assert to_process.modules[0] == "stoker.supervisor.serving"
    assert {"stoker.supervisor.stock", "stoker.models.deployments"} <= set(to_process.modules)
    assert {"stoker.device.loading", "stoker.runtimes.onnx.loading"} <= set(to_session.modules)
