"""The search for the load that a server bears."""

from __future__ import annotations

import pytest

from stoker_bench.confirmation import borne_load, limit_of


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


@pytest.mark.parametrize(
    ("generator", "frontends", "device", "others", "limit"),
    [
        (0.97, 0.6, 0.3, 0.0, "generator"),
        (0.5, 0.93, 0.3, 0.0, "frontends"),
        (0.2, 0.1, 1.0, 0.0, "device"),
        (0.7, 0.7, 0.6, 0.0, "cores"),
        (0.2, 0.1, 0.1, 0.0, "latency"),
        (0.2, 1.0, 0.1, 0.8, "cores"),
    ],
)
def test_busiest_part_is_the_limit(
    generator: float, frontends: float, device: float, others: float, limit: str
) -> None:
    """The limit is the busiest part, or the machine's cores if they are full."""
    busy = {"generator": generator, "frontends": frontends, "device": device, "other programs": others}
    cores = generator + frontends + device + 2 * others
    assert limit_of(busy | {"all cores": min(1.0, cores / 2)}) == limit
