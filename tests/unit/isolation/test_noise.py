"""The noise of a device is the largest difference between answers to equal batches."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest

from stoker.isolation.noise import Noisy, measure_noise

EXPECTED = [np.array([1.0, 2.0], np.float32)]


def test_equal_answers_have_no_noise_but_the_known_one() -> None:
    """The result is never less than the noise that is already known."""
    assert measure_noise(lambda: EXPECTED, EXPECTED) == 0.0
    assert measure_noise(lambda: EXPECTED, EXPECTED, 1e-5) == 1e-5


def test_noise_is_twice_the_largest_difference() -> None:
    """It is relative to the largest number of the output, with room for runs that were not measured."""
    answers = cycle([EXPECTED, [np.array([1.0, 2.0002], np.float32)]])
    assert measure_noise(lambda: next(answers), EXPECTED) == pytest.approx(2e-4, rel=1e-2)


def test_answers_that_differ_much_are_too_noisy() -> None:
    """A model that draws random numbers cannot be tested."""
    with pytest.raises(Noisy):
        measure_noise(lambda: [np.array([1.0, 2.1], np.float32)], EXPECTED)
