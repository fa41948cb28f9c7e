"""How long to wait before a process that has ended is started again."""

import pytest

from stoker.supervisor.backoff import Backoff


def test_delays_double_up_to_half_a_minute() -> None:
    """A process that keeps dying is started ever more rarely, and never given up."""
    backoff = Backoff()
    delays = [backoff.delay_s(lived_s=0.1) for _ in range(10)]
    assert delays == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.parametrize(("lived_s", "delay_s"), [(59.9, 2), (60, 0.25), (1e6, 0.25)])
def test_a_process_that_lived_long_enough_starts_over(lived_s: float, delay_s: float) -> None:
    """A minute of life is health: its next death is a first one."""
    backoff = Backoff()
    for _ in range(3):
        backoff.delay_s(lived_s=1)
    assert backoff.delay_s(lived_s) == delay_s
    assert backoff.delay_s(lived_s=0) == 2 * delay_s
