"""Rings of records in shared memory: what one writes, others read in order, and lose what they come too late for."""

from __future__ import annotations

import mmap

from stoker.metrics.journal import RECORD_BYTES, Ring, ring_bytes


def ring(records: int = 8) -> Ring:
    """An empty one behind something else."""
    return Ring(mmap.mmap(-1, 512 + ring_bytes(records)), 512, records)


def write(ring: Ring, first: int, last: int) -> None:
    """Write records that say their number."""
    for number in range(first, last + 1):
        ring.write(number, b"%d" % number)


def test_records_are_read_once_and_in_order() -> None:
    """Around the end of the ring too; then there are none until more are written."""
    one = ring()
    assert one.since(0) == ([], 0)
    write(one, 1, 5)
    assert one.since(0) == ([b"1", b"2", b"3", b"4", b"5"], 5)
    assert one.since(5) == ([], 5)
    write(one, 6, 11)
    assert one.since(5) == ([b"6", b"7", b"8", b"9", b"10", b"11"], 11)
    assert one.newest == 11


def test_who_comes_too_late_goes_on_with_what_is_there() -> None:
    """Half a ring behind the writer, so that it is not overtaken at once; what is left out can be counted."""
    one = ring()
    write(one, 1, 20)
    assert one.since(3) == ([b"16", b"17", b"18", b"19", b"20"], 20)
    assert one.newest == 20


def test_the_longest_record_fits() -> None:
    """It ends where the next one begins."""
    one = ring()
    one.write(1, b"a" * RECORD_BYTES)
    one.write(2, b"b")
    assert one.since(0) == ([b"a" * RECORD_BYTES, b"b"], 2)


def test_a_record_that_is_being_written_is_left_out() -> None:
    """It has no number until it is whole, though another one had one there before."""
    memory = mmap.mmap(-1, ring_bytes(8))
    one = Ring(memory, 0, 8)
    write(one, 1, 9)
    memory[512:520] = bytes(8)
    assert one.since(7) == ([b"8"], 8)
