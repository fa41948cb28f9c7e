"""Samples of requests in an arena: which, how many and how long."""

from __future__ import annotations

import numpy as np
import pytest
from tests.puppets import BODIES, Joined, PuppetRuntime, PuppetTicket, rows_of

from stoker.gateway.takeover import samples as module
from stoker.gateway.takeover.samples import Samples


def test_each_answered_row_is_sampled_once_and_four_a_second() -> None:
    """A row that is unused, has failed or was collected before is no sample."""
    runtime = PuppetRuntime()
    runtime.fails_for = {9.0}
    with Joined(runtime) as joined:
        samples = Samples(3)

        def collect(after_ms: float) -> list[float]:
            joined.clock.advance_ms(after_ms)
            samples.collect(joined.exchanges, joined.clock())
            return [float(rows[0][0, 0]) for rows in samples.contents if not isinstance(rows, bytes)]

        assert collect(0) == []
        joined.clock.advance_ms(1)
        joined.submit(1)
        joined.settle()
        assert collect(100) == [], "a few a second are enough"
        assert collect(300) == [1.0]
        assert collect(300) == [1.0]
        for number in (9.0, 2.0, 3.0, 4.0):
            joined.clock.advance_ms(1)
            joined.submit(number)
            joined.settle()
            seen = collect(300)
        assert seen == [2.0, 3.0, 4.0]
        (kept,) = samples.contents[-1]
        joined.submit(5)
        joined.settle()
        assert np.array_equal(kept, rows_of(4.0)[0]), "it is a copy"


def test_collect_beyond_the_limit_of_bytes_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body above the limit of one sample is not kept."""
    runtime = PuppetRuntime(BODIES, lambda inputs: [[bytes(body) for body in inputs[0]]])
    monkeypatch.setattr(module, "_MAX_BYTES", 150)
    monkeypatch.setattr(module, "_MAX_SAMPLE_BYTES", 100)
    with Joined(runtime) as joined:
        samples = Samples(9)
        for body in (b"a" * 60, b"b" * 80, b"c" * 120, b"d" * 60, b"e" * (2 << 20)):
            joined.clock.advance_ms(300)
            joined.exchange.submit_body(PuppetTicket(), body)
            joined.settle()
            joined.clock.advance_ms(1)
            samples.collect(joined.exchanges, joined.clock())
        assert samples.contents == [b"b" * 80, b"d" * 60]
