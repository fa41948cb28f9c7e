"""The page of promises: it says of every fault what the fault's own sentence says, and its tests exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.chaos import scheduler
from tests.chaos.scene import ACTIONS, ENDINGS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "server" / "docs" / "promises.md").read_text(encoding="utf-8")


def test_every_fault_has_its_promise() -> None:
    """None is missing, none is there that does not strike, and each is told in the same words."""
    assert scheduler.plan(1, 1).ending.name in ENDINGS, "all faults are known"
    table = PAGE.partition("| fault | promise | what it may cost |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]
    faults = (*ACTIONS.values(), *ENDINGS.values())
    assert sorted((name, promise) for name, promise, _ in rows) == sorted(
        (one.name, one.promise) for one in faults
    )


def test_every_test_that_is_named_exists() -> None:
    """By its path and its name."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) >= 15
    for path, name in named:
        assert re.search(
            rf"^(async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE
        ), name
