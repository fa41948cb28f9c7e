"""One caller of a model on a card: a puppet of the card in a real device process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lone_caller import MODELS, times_us


@pytest.mark.parametrize("name", MODELS)
def test_a_lone_caller_has_its_answer_when_the_card_has_computed_it(tmp_path: Path, name: str) -> None:
    """Its own one, and never before; `python -m tests.lone_caller` says how soon after."""
    model = MODELS[name]
    assert min(times_us(tmp_path, model, requests=50)) > model.times.alone_us
