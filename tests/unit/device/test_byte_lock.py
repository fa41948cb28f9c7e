"""Locks on bytes of a shared file: each belongs to its own open file description."""

import os
from collections.abc import Iterator

import pytest

from stoker.device.byte_lock import ByteLock


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("locks", os.MFD_CLOEXEC)
    yield fd
    os.close(fd)


def test_a_byte_has_one_holder(fd: int) -> None:
    """Other bytes are free, and the lock is free again after `unlock`."""
    first, second = ByteLock(fd, 5), ByteLock(fd, 5)
    first.lock()
    assert not second.try_lock()
    assert second.try_lock(6)
    first.unlock()
    assert second.try_lock()
    first.close()
    second.close()


def test_a_closed_descriptor_releases_its_locks(fd: int) -> None:
    """As the end of its process does."""
    first, second = ByteLock(fd, 5), ByteLock(fd, 5)
    first.lock()
    first.close()
    assert second.try_lock()
    second.close()
