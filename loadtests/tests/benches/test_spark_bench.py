"""The bench of Spark: its ratios, with and without what Spark itself takes."""

import pytest

from stoker_bench.benches.spark_bench import Taken, ratios


def test_ratios_are_of_medians() -> None:
    """The time of a job that scores nothing is not the server's."""
    found = {
        "pass-through job": [Taken(4.0, 0), Taken(2.0, 0), Taken(3.0, 0)],
        "scored": [Taken(9.0, 0), Taken(8.0, 0), Taken(99.0, 0)],
        "score_many": [Taken(5.0, 0), Taken(5.0, 0), Taken(6.0, 0)],
    }
    assert ratios(found) == pytest.approx((1.8, 1.2))
