"""The search for the load that a server bears."""

from __future__ import annotations

import pytest

from stoker_bench.confirmation import borne_load


@pytest.mark.parametrize(
    ("most", "wanted", "found"), [(100, 80, 80), (100, 160, 100), (30, 160, 30), (0, 160, 0)]
)
def test_the_load_that_is_borne_is_found(most: float, wanted: float, found: float) -> None:
    """The one that is wanted, else the largest of a few lower ones; none if there is none."""
    tried: list[float] = []

    def is_borne(rate: float) -> bool:
        tried.append(rate)
        return rate <= most

    load = borne_load(is_borne, wanted)
    assert load <= most
    assert load == pytest.approx(found, rel=0.25)
    assert len(tried) <= 9
