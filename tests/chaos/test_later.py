"""Answers later survive the end of every process; `make chaos-later` kills more often."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.later import kill_and_fetch

pytestmark = pytest.mark.long


def test_killed_servers_lose_no_request_that_is_answered_later(tmp_path: Path) -> None:
    """Each has its right answer, and those that ran more than once say so."""
    tally = kill_and_fetch(tmp_path, requests=200, kills=2, seed=1, most_s=0.5)
    assert (tally.answered, tally.wrong, tally.unmarked) == (200, [], [])
