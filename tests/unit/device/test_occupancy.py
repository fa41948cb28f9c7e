"""Batches that run at the same time, and one that must run alone."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.live_server import wait_until
from tests.patience import PATIENCE_S

from stoker.device.occupancy import Occupancy


def several() -> Occupancy:
    """For a model with several instances."""
    occupancy = Occupancy()
    occupancy.several = True
    return occupancy


def on_thread(function: Callable[[], None]) -> threading.Thread:
    """Call `function` on a thread of its own."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def wait_for_waiters(occupancy: Occupancy, count: int) -> None:
    """Return when so many threads wait."""
    wait_until(lambda: len(occupancy._changed._waiters) == count, "they wait")  # type: ignore[attr-defined]


def test_beginning_batch_learns_how_many_share_the_device() -> None:
    """Two batches at a time take longer each than one; a single instance is always alone."""
    occupancy = several()
    assert [occupancy.enter(), occupancy.enter()] == [1, 2]
    occupancy.leave()
    assert occupancy.enter() == 2
    single = Occupancy()
    assert [single.enter(), single.enter()] == [1, 1]


def test_a_batch_is_alone_only_when_the_others_have_ended() -> None:
    """It has begun with them, and waits for them."""
    occupancy, order = several(), list[str]()

    def run() -> None:
        occupancy.enter()
        with occupancy.alone():
            order.append("alone")
        occupancy.leave()

    occupancy.enter()
    thread = on_thread(run)
    wait_for_waiters(occupancy, 1)
    order.append("the other one ends")
    occupancy.leave()
    thread.join(PATIENCE_S)
    assert order == ["the other one ends", "alone"]


def test_no_batch_begins_while_one_is_alone() -> None:
    """The next one waits until it has ended, and then begins."""
    occupancy, order = several(), list[str]()

    def run() -> None:
        occupancy.enter()
        order.append("the next one begins")
        occupancy.leave()

    occupancy.enter()
    with occupancy.alone():
        thread = on_thread(run)
        wait_for_waiters(occupancy, 1)
        order.append("alone")
    occupancy.leave()
    thread.join(PATIENCE_S)
    assert order == ["alone", "the next one begins"]


def test_several_that_want_to_be_alone_are_so_in_turn() -> None:
    """Batches that run out of memory at the same time do not wait for each other for ever."""
    occupancy, inside, most = several(), list[int](), list[int]()
    all_begun = threading.Barrier(3)

    def run() -> None:
        occupancy.enter()
        all_begun.wait(PATIENCE_S)
        with occupancy.alone():
            inside.append(1)
            most.append(len(inside))
            inside.pop()
        occupancy.leave()

    threads = [on_thread(run) for _ in range(3)]
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert most == [1, 1, 1]


def test_being_alone_ends_with_an_error_too() -> None:
    """Else the model would never run again."""
    occupancy = several()
    occupancy.enter()
    with pytest.raises(ZeroDivisionError), occupancy.alone():
        raise ZeroDivisionError
    occupancy.leave()
    occupancy.enter()


def test_one_instance_is_always_alone() -> None:
    """It waits for nobody, whether it says that it begins or not."""
    occupancy = Occupancy()
    occupancy.enter()
    with occupancy.alone():
        occupancy.enter()
