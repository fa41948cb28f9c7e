"""How the memory is divided: bodies of callers never fill it, where it is not far too small."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.body_budgets import least_budget_bytes

from stoker.settings.server import ServerSettings
from stoker.supervisor import body_memory as module
from stoker.supervisor.body_memory import body_memory
from stoker.supervisor.serving import _warn_of_memory

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("memory", "frontends", "body_mb", "budget", "scarce"),
    [
        (16 * GIB, 1, 100, GIB, False),
        (64 * GIB, 8, 100, GIB, False),
        (64 * GIB, 4, 500, 4000 * MIB, False),
        (4 * GIB, 2, 100, GIB // 2, False),
        (GIB, 1, 100, 256 * MIB, False),
        (GIB, 2, 100, 200 * MIB, True),
        (GIB, 2, 10, 128 * MIB, False),
    ],
)
def test_the_budget_follows_from_the_memory(
    memory: int, frontends: int, body_mb: float, budget: int, scarce: bool
) -> None:
    """A quarter for the bodies of all frontends; no more than helps, and two bodies in any case."""
    chosen = body_memory(ServerSettings(frontends=frontends, max_body_mb=body_mb), memory)
    assert (chosen.budget_bytes, chosen.scarce) == (budget, scarce)


@settings(max_examples=40)
@given(st.integers(MIB, 1 << 42), st.integers(1, 64), st.floats(0.001, 1024))
def test_one_body_of_the_largest_size_always_fits(memory: int, frontends: int, body_mb: float) -> None:
    """And bodies leave three quarters of the memory, unless it is said that they do not."""
    chosen = ServerSettings(frontends=frontends, max_body_mb=body_mb)
    budget, _, _, scarce = body_memory(chosen, memory)
    assert budget >= least_budget_bytes(chosen.max_body_bytes)
    assert scarce is (4 * frontends * budget > memory)


@pytest.mark.parametrize(("memory", "lines"), [(4 * GIB, 0), (GIB // 2, 1)])
def test_the_start_warns_of_bodies_that_could_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, memory: int, lines: int
) -> None:
    """In one line, with what to do about it."""
    monkeypatch.setattr(module, "main_memory", lambda: (memory, memory))
    _warn_of_memory(ServerSettings(frontends=2))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * lines
    assert all("lower max_body_mb" in record.getMessage() for record in caplog.records)
