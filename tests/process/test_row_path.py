"""The modules that one row passes from socket to socket."""

from __future__ import annotations

import re
from pathlib import Path

from tests.row_path import row_path

PAGE = Path(__file__).parents[2] / "server" / "docs" / "life-of-a-request.md"
MOST_MODULES = 32


def test_the_life_of_a_request_names_each_module_that_a_row_passes() -> None:
    """There are few of them; someone who follows a row has to open no others."""
    path = row_path()
    named = {
        link.removesuffix(".py").replace("/", ".")
        for link in re.findall(r"\]\(\.\./([\w/]+\.py)\)", PAGE.read_text(encoding="utf-8"))
    }
    assert len(path) <= MOST_MODULES, path
    assert set(path) <= named
    assert "stoker.gateway.listeners.direct" in path
    assert "stoker.device.worker" in path
