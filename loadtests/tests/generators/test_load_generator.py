"""Processes of the load generator: how connections are shared out, and a process that fails."""

import pytest

from stoker_bench.generators.load_generator import GeneratorError, output_of, shares_of


def test_failing_generator_is_an_error_with_its_complaint() -> None:
    """A generator that ends with an exit code is not taken for one with figures."""
    with pytest.raises(GeneratorError, match="no such option"):
        output_of(["sh", "-c", "echo 'no such option' >&2; exit 1"], 1)


def test_shares_differ_by_one_at_most() -> None:
    """All connections are given to some process."""
    assert shares_of(10, 4) == [3, 3, 2, 2]
    assert shares_of(1, 3) == [1, 0, 0]
