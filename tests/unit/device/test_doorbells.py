"""The doorbells of all frontends on one poller: lanes that come, go, and wake the thread that waits."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest
from tests.puppets import ROWS

from stoker.arena import Arena
from stoker.device.doorbells import Doorbells
from stoker.device.lanes import Lane


def make_lane() -> tuple[Lane, socket.socket]:
    """A lane, and the frontend's end of its doorbell."""
    fd = Arena.create(ROWS, 4)
    near, far = socket.socketpair()
    lane = Lane(Arena(fd, ROWS, 4), far)
    os.close(fd)
    return lane, near


@pytest.fixture
def doorbells() -> Iterator[Doorbells]:
    doorbells = Doorbells(None)
    yield doorbells
    doorbells.close()


def test_an_added_lane_wakes_the_waiting_thread(doorbells: Doorbells) -> None:
    """The lane is watched once the thread has admitted it."""
    assert doorbells.poller.poll(0) == []
    lane, frontend = make_lane()
    doorbells.add(lane)
    assert [fd for fd, _ in doorbells.poller.poll(0)] == [doorbells.wake_fd]
    assert doorbells.lanes == {}
    assert doorbells.admit()
    (fd,) = doorbells.lanes
    frontend.send(np.array([3], np.uint32).tobytes())
    assert [number for number, _ in doorbells.poller.poll(0)] == [fd]
    received = lane.receive()
    assert received is not None
    assert received.tolist() == [3]
    doorbells.drop(fd)
    frontend.close()


def test_a_dropped_lane_stays_in_lanes_of_earlier_batches(doorbells: Doorbells) -> None:
    """The dictionary is replaced: a batch keeps the lanes of the moment when it left."""
    lane, frontend = make_lane()
    doorbells.add(lane)
    doorbells.admit()
    (fd,) = doorbells.lanes
    before = doorbells.lanes
    doorbells.drop(fd)
    assert (before, doorbells.lanes, lane.doorbell.fileno()) == ({fd: lane}, {}, -1)
    frontend.close()


def test_stop_wakes_without_lanes(doorbells: Doorbells) -> None:
    """A wake-up without a new lane admits none."""
    doorbells.stop()
    assert doorbells.stopped
    assert doorbells.poller.poll(0)
    assert not doorbells.admit()
    assert doorbells.poller.poll(0) == []


def test_each_wake_up_is_reported() -> None:
    """After `mark_closed`, wake-ups write to no descriptor, and are still reported."""
    calls: list[None] = []
    doorbells = Doorbells(None, lambda: calls.append(None))
    doorbells.wake()
    doorbells.stop()
    assert len(calls) == 2
    assert doorbells.descriptors() == [doorbells.wake_fd, doorbells.poller.fileno()]
    doorbells.mark_closed()
    doorbells.close()
    doorbells.wake()
    assert (len(calls), doorbells.descriptors()) == (3, [])
