"""The bounds for a GPU in a table."""

from stoker_bench.gpu.aims import AIMS, Acceptance


def test_a_bound_is_met_from_above_or_from_below() -> None:
    """A share has to be at least its bound, a time at most; a missing figure is neither met nor missed."""
    found = Acceptance(values={"closed 512": 0.97, "poisson": 0.91, "load": 4.0, "lone mlp": 3.1})
    assert [found.is_met(key) for key in ("closed 512", "poisson", "load", "lone mlp", "images")] == [
        *(True, False, True, False, None)
    ]


def test_table_compares_each_bound_with_its_earlier_figure() -> None:
    """Every bound has a line, met or not, and each peer one for each number of callers."""
    found = Acceptance({"closed 512": 0.98}, {"poisson": "no generator"}, [("mosec", 512, 4321.0, 118.2)])
    lines = found.table().splitlines()
    assert lines[2].split()[-5:] == ["0.82", "≥", "0.97", "0.98", "met"]
    assert sum("not measured" in line for line in lines) == len(AIMS) - 1 + 1
    assert "not measured: Poisson arrivals, p99 ≤ 15 ms, of the ceiling: no generator" in lines
    assert lines[-1].split() == ["mosec", "512", "4,321", "118"]
