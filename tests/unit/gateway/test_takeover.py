"""Samples of requests: what is kept of those that lie in an arena, how often, and how much of it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.puppets import BODIES, Joined, PuppetRuntime, PuppetTicket, rows_of

from stoker.gateway import takeover as samples_module
from stoker.gateway.takeover import Samples


def test_requests_are_sampled_once_and_a_few_a_second() -> None:
    """A row that nobody has used, has failed or lies there since the last look is no sample."""
    runtime = PuppetRuntime()
    runtime.fails_for = {9.0}
    with Joined(runtime) as joined:
        samples = Samples(3)

        def look(after_ms: float) -> list[float]:
            joined.clock.advance_ms(after_ms)
            samples.collect(joined.exchanges, joined.clock())
            return [float(rows[0][0, 0]) for rows in samples.contents if not isinstance(rows, bytes)]

        assert look(0) == []
        joined.clock.advance_ms(1)
        joined.submit(1)
        joined.settle()
        assert look(100) == [], "a few a second are enough"
        assert look(300) == [1.0]
        assert look(300) == [1.0]
        for number in (9.0, 2.0, 3.0, 4.0):
            joined.clock.advance_ms(1)
            joined.submit(number)
            joined.settle()
            seen = look(300)
        assert seen == [2.0, 3.0, 4.0]
        (kept,) = samples.contents[-1]
        joined.submit(5)
        joined.settle()
        assert np.array_equal(kept, rows_of(4.0)[0]), "it is a copy"


def test_samples_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long body is no sample, and of others the oldest make room."""
    runtime = PuppetRuntime(BODIES, lambda inputs: [[bytes(body) for body in inputs[0]]])
    monkeypatch.setattr(samples_module, "_MAX_BYTES", 150)
    monkeypatch.setattr(samples_module, "_MAX_SAMPLE_BYTES", 100)
    with Joined(runtime) as joined:
        samples = Samples(9)
        for body in (b"a" * 60, b"b" * 80, b"c" * 120, b"d" * 60, b"e" * (2 << 20)):
            joined.clock.advance_ms(300)
            joined.exchange.submit_body(PuppetTicket(), body)
            joined.settle()
            joined.clock.advance_ms(1)
            samples.collect(joined.exchanges, joined.clock())
        assert samples.contents == [b"b" * 80, b"d" * 60]
