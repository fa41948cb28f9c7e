"""Rows in shared memory."""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import BODIES, ROWS, STEADY, TEXTS

from stoker.arena import Arena, capacity_rows
from stoker.tensors import NUMERIC_DTYPES, Signature, TensorSpec

FRONTENDS = ("deadline_ns", "enqueued_ns", "position", "target_ns", "size", "placed")
DEVICES = ("outcome", "started_ns", "finished_ns", "detail")
MIB = 1 << 20


def two_views(signature: Signature, capacity: int) -> tuple[Arena, Arena, int]:
    """Two mappings of a new arena, as a frontend and a device process have them, and its file descriptor."""
    fd = Arena.create(signature, capacity)
    return Arena(fd, signature, capacity), Arena(fd, signature, capacity), fd


def arrays_by_name(arena: Arena) -> dict[str, np.ndarray]:
    """Every array of an arena by a name."""
    arrays = {"queued": arena.queued, "done": arena.done}
    arrays |= {f"in{i}": array for i, array in enumerate(arena.inputs)}
    arrays |= {f"out{i}": array for i, array in enumerate(arena.outputs)}
    arrays |= {f"in{i}.length": a for i, a in enumerate(arena.input_lengths) if a is not None}
    arrays |= {f"out{i}.length": a for i, a in enumerate(arena.output_lengths) if a is not None}
    return arrays


fixed_specs = st.builds(
    TensorSpec,
    st.just("t"),
    st.sampled_from(sorted(NUMERIC_DTYPES)),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
)
variable_specs = st.builds(
    TensorSpec, st.just("t"), st.just("uint8"), st.integers(1, 9000).map(lambda n: (n,)), st.just(True)
)
sides = st.lists(fixed_specs | variable_specs, min_size=1, max_size=3).map(tuple)


@STEADY
@given(st.builds(Signature, sides, sides), st.integers(1, 9))
def test_no_two_arrays_share_a_byte(signature: Signature, capacity: int) -> None:
    """For any signature, an array that is filled with ones leaves all others at zero."""
    near, far, fd = two_views(signature, capacity)
    os.close(fd)
    written, seen = arrays_by_name(near), arrays_by_name(far)
    for name, array in written.items():
        array.reshape(-1).view(np.uint8)[:] = 255
        for other, content in seen.items():
            assert content.reshape(-1).view(np.uint8).all() == (other == name or not content.size)
            assert content.any() == (other == name and content.size > 0)
        array.reshape(-1).view(np.uint8)[:] = 0


@STEADY
@given(st.builds(Signature, sides, sides), st.integers(1, 9))
def test_arrays_have_the_shape_of_their_rows(signature: Signature, capacity: int) -> None:
    """Fixed-size rows are stored as they are, variable ones with at least their limit and a length."""
    arena, _, fd = two_views(signature, capacity)
    os.close(fd)
    for specs, arrays, lengths in (
        (signature.inputs, arena.inputs, arena.input_lengths),
        (signature.outputs, arena.outputs, arena.output_lengths),
    ):
        for spec, array, length in zip(specs, arrays, lengths, strict=True):
            assert array.dtype == spec.dtype
            if spec.variable:
                assert array.shape[0] == capacity
                assert array.shape[1] >= spec.shape[0]
                assert length is not None
                assert (length.shape, length.dtype) == ((capacity,), np.int64)
            else:
                assert array.shape == (capacity, *spec.shape)
                assert length is None


def test_each_column_of_the_headers_has_its_name() -> None:
    """A row's header is one line of a matrix for each writer; every column can be had by its name too."""
    arena, other, fd = two_views(ROWS, 3)
    os.close(fd)
    for matrix, names in ((arena.queued, FRONTENDS), (arena.done, DEVICES)):
        assert (matrix.shape, matrix.dtype) == ((3, len(names)), np.int64)
        for column, name in enumerate(names):
            getattr(other, name)[1] = 10 + column
            other.words(name)[2] = -1 << 62
            assert arena.words(name).tolist() == [0, 10 + column, -1 << 62]
            assert matrix[:, column].tolist() == [0, 10 + column, -1 << 62]
    assert arena.done[1].tolist() == [10, 11, 12, 13]


def test_both_mappings_see_each_others_writes() -> None:
    """The device reads the frontend's writes, and the other way round."""
    frontend, device, fd = two_views(ROWS, 4)
    os.close(fd)
    frontend.inputs[0][2] = [1.5, -2]
    frontend.words("deadline_ns")[3] = 99
    device.outputs[0][1] = [7, 8]
    device.outcome[1] = 2
    assert device.inputs[0].tolist() == [[0, 0], [0, 0], [1.5, -2], [0, 0]]
    assert device.deadline_ns.tolist() == [0, 0, 0, 99]
    assert frontend.outputs[0][1].tolist() == [7, 8]
    assert frontend.words("outcome")[1] == 2


@STEADY
@given(st.lists(st.tuples(st.sampled_from(["in", "out"]), st.integers(0, 3), st.binary(max_size=300))))
def test_variable_rows_hold_the_last_value(writes: list[tuple[str, int, bytes]]) -> None:
    """Each row of each side gives its own bytes back, however long those before them were."""
    spec = TensorSpec("t", "uint8", (300,), variable=True)
    near, far, fd = two_views(Signature((spec,), (spec,)), 4)
    os.close(fd)
    stored: dict[tuple[str, int], bytes] = {}
    for side, number, data in writes:
        assert near.write_bytes(side, 0, number, memoryview(data))
        stored[side, number] = data
    for side in ("in", "out"):
        for number in range(4):
            assert far.read_bytes(side, 0, number) == stored.get((side, number), b"")


def test_bytes_that_are_too_long_leave_the_row_as_it_was() -> None:
    """One byte over the limit is refused, though the stored row is rounded up to whole pages."""
    arena, _, fd = two_views(TEXTS, 2)
    os.close(fd)
    assert arena.write_bytes("out", 0, 1, b"x" * 64)
    assert not arena.write_bytes("out", 0, 1, b"y" * 65)
    assert arena.read_bytes("out", 0, 1) == b"x" * 64


def test_memory_of_large_bodies_goes_back_to_the_system() -> None:
    """A new arena takes no memory, a large body takes its size, and afterwards the memory is free again."""
    arena, _, fd = two_views(BODIES, 8)
    empty = os.fstat(fd).st_blocks
    assert empty * 512 < MIB
    assert os.fstat(fd).st_size > 8 * 8 * MIB
    body = os.urandom(3 * MIB)
    arena.write_bytes("in", 0, 5, body)
    arena.write_bytes("out", 0, 5, body[:-1])
    arena.write_bytes("in", 0, 4, b"small")
    full = os.fstat(fd).st_blocks
    assert (full - empty) * 512 >= 6 * MIB
    arena.give_back_pages(5)
    left = os.fstat(fd).st_blocks
    os.close(fd)
    assert (left - empty) * 512 < 64 * 1024
    assert arena.read_bytes("in", 0, 5) == arena.read_bytes("out", 0, 5) == b""
    assert not arena.inputs[0][5].any()
    assert arena.read_bytes("in", 0, 4) == b"small"


def test_small_bodies_keep_their_pages() -> None:
    """Giving pages back costs a system call, which a body under 1 MiB is not worth."""
    arena, _, fd = two_views(BODIES, 2)
    os.close(fd)
    arena.write_bytes("in", 0, 0, b"x" * (MIB - 1))
    arena.give_back_pages(0)
    assert arena.read_bytes("in", 0, 0) == b"x" * (MIB - 1)


def test_trim_returns_kept_pages() -> None:
    """A row loses all pages under 1 MiB, also those of a longer earlier request; one row at a time."""
    arena, _, fd = two_views(BODIES, 8)
    empty = os.fstat(fd).st_blocks
    for number in range(6):
        arena.write_bytes("in", 0, number, b"x" * (MIB - 1))
        arena.write_bytes("in", 0, number, b"short")
    arena.write_bytes("out", 0, 5, b"y" * 5000)
    arena.write_bytes("out", 0, 4, b"z" * 5000)
    cold = [7, 5, 3, 1]
    assert arena.give_back_kept_pages(cold)
    assert [arena.read_bytes("in", 0, number) for number in range(6)] == [b"short"] * 5 + [b""]
    assert [len(arena.read_bytes("out", 0, number)) for number in (4, 5)] == [5000, 0]
    assert 5 * MIB <= (os.fstat(fd).st_blocks - empty) * 512 < 6 * MIB
    assert [arena.give_back_kept_pages(cold) for _ in range(3)] == [True, True, False]
    assert not arena.give_back_kept_pages([])
    left = (os.fstat(fd).st_blocks - empty) * 512
    os.close(fd)
    assert 3 * MIB <= left < 4 * MIB
    assert not any(arena.inputs[0][number].any() for number in (1, 3, 5, 7))


@pytest.mark.parametrize(("side", "index"), [("in", 0), ("out", 0)])
def test_the_last_row_of_a_body_arena_can_be_filled_to_the_brim(side: str, index: int) -> None:
    """The mapping reaches to the end of the last row."""
    arena, other, fd = two_views(BODIES, 2)
    os.close(fd)
    body = b"\xab" * (4 * MIB)
    assert arena.write_bytes(side, index, 1, body)
    assert other.read_bytes(side, index, 1) == body
    other.give_back_pages(1)
    assert arena.read_bytes(side, index, 1) == b""


@STEADY
@given(st.builds(Signature, sides, sides), st.integers(1, 65536))
def test_capacity_is_bounded(signature: Signature, max_batch_rows: int) -> None:
    """There is always room for two full batches, and never more than 16384 rows without need."""
    capacity = capacity_rows(signature, max_batch_rows)
    assert capacity >= max(64, 2 * max_batch_rows)
    assert capacity <= max(16384, 2 * max_batch_rows)


@pytest.mark.parametrize(
    ("row_bytes", "max_batch_rows", "capacity"),
    [
        (4 * 794, 256, 16384),
        (MIB, 32, 512),
        (64 * MIB, 16, 64),
        (MIB, 1000, 2000),
        (0, 1, 16384),
    ],
)
def test_capacity_follows_the_size_of_a_row(row_bytes: int, max_batch_rows: int, capacity: int) -> None:
    """Rows share 512 MiB, as long as there are 64 of them and two full batches."""
    signature = Signature((TensorSpec("x", "uint8", (row_bytes,)),), (TensorSpec("y", "uint8", (0,)),))
    assert capacity_rows(signature, max_batch_rows) == capacity


def test_capacity_for_bodies_does_not_follow_their_limit() -> None:
    """Body rows are sparse, so there are 1024, unless they would take more than 4 TiB of addresses."""
    assert capacity_rows(BODIES, 256) == 1024
    (answer,) = BODIES.outputs
    for size_bytes, capacity in ((1 << 31, 1024), (1 << 35, 127), (1 << 50, 1)):
        huge = replace(BODIES, outputs=(replace(answer, shape=(size_bytes,)),))
        assert capacity_rows(huge, 256) == capacity
