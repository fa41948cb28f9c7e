"""The spool of two processes: what one of them does comes between any two calls of the system of the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interleaving import moments
from tests.unit.gateway.later.test_spool import Clock, head_of, open_spool

from stoker.errors import NotFound
from stoker.gateway.later.spool import Spool


def add(spool: Spool, name: str) -> None:
    spool.add(name, head_of(), b"body", keyed=True)


def run(spool: Spool, name: str) -> None:
    claim = spool.claim(name)
    if claim is not None:
        assert spool.read(claim).body == b"body"
        spool.finish(claim, head_of() | {"status": 200}, b"answer", "https://example.com/")


def give_back(spool: Spool, name: str) -> None:
    claim = spool.claim(name)
    if claim is not None:
        spool.release(claim, ran=False)


def sweep(spool: Spool, _: str) -> None:
    spool.sweep()


def cancel(spool: Spool, name: str) -> None:
    spool.remove(name)


def look(spool: Spool, name: str) -> None:
    with contextlib.suppress(NotFound):
        spool.find(name, with_body=True)


@pytest.mark.parametrize("other", [add, run, give_back, sweep, cancel, look])
@pytest.mark.parametrize("own", [add, run, give_back, sweep, cancel, look])
def test_no_moment_loses_a_request_or_a_count(
    tmp_path: Path, own: Callable[[Spool, str], None], other: Callable[[Spool, str], None]
) -> None:
    """A request that was accepted is there, or its answer, unless it was cancelled; and the counters are right."""
    for moment, interrupted in enumerate(moments()):
        mine, others = (open_spool(tmp_path / str(moment), Clock()) for _ in range(2))
        name = mine.new_id("me", b"key")
        if own is not add:
            add(mine, name)
        with interrupted(lambda others=others, name=name: other(others, name)):
            own(mine, name)
        counted = mine.usage()
        mine.sweep()
        assert mine.usage() == counted, moment
        if cancel not in (own, other):
            _, is_answer = mine.find(name, with_body=True)
            assert (is_answer, is_answer) == (not mine.waiting_ids(), mine.waiting_callbacks() == [name])
            assert (counted.accepted, counted.answered, counted.cancelled) == (1, is_answer, 0), moment
    assert moment > 0
