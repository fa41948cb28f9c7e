"""The frontend's side of an arena, joined with a worker by a real doorbell; every turn is the test's."""

import re
from typing import Any

import numpy as np
import pytest
from tests.puppets import BODIES, TEXTS, Joined, PuppetRuntime, PuppetTicket, answer_of, doubled

from stoker.arena import LONE_ROWS
from stoker.errors import BodyTooLarge, InvalidInput, ModelFailed, OutputTooLarge, Overloaded
from stoker.gateway.rows.exchange import ArenaExchange
from stoker.gateway.rows.ticket import SlicedAnswer
from stoker.tensors import Signature, TensorSpec

MIB = 1 << 20


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 16, 17, 100])
def test_a_request_gets_its_own_answer(rows: int) -> None:
    """Requests below, at and above the arena's 16 rows come back complete and in order."""
    with Joined(capacity=16) as joined:
        ticket = joined.submit(*range(rows))
        joined.settle()
        assert answer_of(ticket) == doubled(*range(rows))
        assert ticket.rows == rows
        assert joined.exchange.leased_rows == 0


def test_requests_of_one_turn_leave_as_one_batch() -> None:
    """A busy or sleeping device gets all rows queued meanwhile as one batch."""
    with Joined() as joined:
        tickets = [joined.submit(1), joined.submit(2, 3), joined.submit(4)]
        joined.turn_frontends()
        joined.turn_device()
        joined.turn_frontends()
        assert [answer_of(ticket) for ticket in tickets] == [doubled(1), doubled(2, 3), doubled(4)]
        assert joined.runtime.rows_run == [1, 2, 3, 4]
        assert len(joined.runtime.batches) == 1


def test_a_row_that_is_used_to_being_alone_does_not_wait_for_company() -> None:
    """After a few lone rows the next one rings at once; one with company waits for the end of the turn again."""
    with Joined() as joined:
        for number in range(LONE_ROWS):
            joined.submit(number)
            joined.settle()
        lone = joined.submit(50)
        joined.turn_device()
        assert joined.runtime.rows_run[-1] == 50
        joined.turn_frontends()
        assert answer_of(lone) == doubled(50)
        joined.submit(51)
        company = [joined.submit(52), joined.submit(53)]
        joined.turn_device()
        assert joined.runtime.rows_run[-1] == 51
        joined.settle()
        assert [answer_of(ticket) for ticket in company] == [doubled(52), doubled(53)]
        first = joined.submit(54)
        joined.turn_device()
        assert joined.runtime.rows_run[-1] == 53
        joined.settle()
        assert answer_of(first) == doubled(54)


def test_each_frontend_gets_its_own_rows() -> None:
    """One batch is filled from several arenas, whose row numbers are the same, and taken apart again."""
    with Joined(frontends=3) as joined:
        tickets = [joined.submit(10 * frontend, 1, frontend=frontend) for frontend in range(3)]
        joined.turn_frontends()
        joined.turn_device()
        joined.turn_frontends()
        assert [answer_of(ticket) for ticket in tickets] == [doubled(0, 1), doubled(10, 1), doubled(20, 1)]
        assert len(joined.runtime.batches) == 1


def test_stage_times_are_those_of_the_clock() -> None:
    """A ticket knows when it was queued, when its batch left, and when it came back."""
    with Joined() as joined:
        joined.runtime.during = lambda: joined.clock.advance_ms(3)
        ticket = joined.submit(1, 2)
        joined.clock.advance_ms(5)
        joined.settle()
        begun_ns = ticket.enqueued_ns
        assert begun_ns == joined.clock() - 8_000_000
        assert (ticket.started_ns - begun_ns, ticket.finished_ns - begun_ns) == (5_000_000, 8_000_000)


def test_a_full_arena_refuses_with_a_retry_after() -> None:
    """Without a free row a request is refused at once, leaves nothing behind, and gets the queue's time."""
    with Joined(capacity=16) as joined:
        columns = [joined.submit(number) for number in range(13)]
        with pytest.raises(Overloaded, match="All 16 rows") as refused:
            joined.submit(1, 2, 3, 4)
        assert refused.value.retry_after_s is not None
        assert refused.value.retry_after_s >= 1
        assert joined.exchange.leased_rows == 13
        assert joined.exchange.free_rows
        columns.append(joined.submit(13, 14, 15))
        assert not joined.exchange.free_rows
        with pytest.raises(Overloaded):
            joined.submit(1)
        with pytest.raises(Overloaded):
            joined.submit(*range(100))
        joined.settle()
        assert all(ticket.completions == 1 for ticket in columns)
        assert joined.exchange.leased_rows == 0


def keep_busy(joined: Joined, rows_per_s: int, seconds: float = 4) -> None:
    """Let the device do so many rows a second, with always something left to do."""
    joined.submit(0)
    for _ in range(round(seconds * 40)):
        for number in range(rows_per_s // 40):
            joined.submit(number)
        joined.turn_frontends()
        # The last row of each round is still leased while the rate is looked at.
        joined.turn_device()
        joined.clock.advance_ms(25)
        joined.sweep()
        joined.turn_frontends()


def test_retry_after_follows_the_measured_service_rate() -> None:
    """64 rows at 20 rows a second take a good three seconds."""
    with Joined(capacity=64) as joined:
        keep_busy(joined, rows_per_s=40)
        joined.settle()
        for number in range(64):
            joined.submit(number)
        assert joined.exchange.overloaded().retry_after_s in (2, 3)
        joined.settle()


def test_retry_after_survives_an_idle_spell() -> None:
    """That nobody asked for an hour does not make the device slow."""
    with Joined(capacity=64) as joined:
        keep_busy(joined, rows_per_s=1600)
        joined.settle()
        for _ in range(1000):
            joined.clock.advance_ms(3600)
            joined.sweep()
        for number in range(64):
            joined.submit(number)
        assert joined.exchange.overloaded().retry_after_s in (1, 2)
        joined.settle()


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_number_that_overflows_the_input_is_refused(dtype: str, rows: int) -> None:
    """A cast that would yield infinity is an error of the caller, and takes no row."""
    signature = Signature((TensorSpec("x", dtype, (2,)),), (TensorSpec("y", dtype, (2,)),))
    with np.errstate(over="raise"), Joined(PuppetRuntime(signature), capacity=16) as joined:
        with pytest.raises(InvalidInput, match="too large"):
            joined.submit(*[1e300] * rows)
        assert joined.exchange.leased_rows == 0
        ticket = joined.submit(*range(rows))
        joined.settle()
        assert ticket.answer is not None
        assert ticket.answer[0].tolist() == doubled(*range(rows))


def test_an_exchange_is_not_made_where_numbers_would_overflow_unnoticed() -> None:
    """Whether numpy raises belongs to the thread and the context; one that only warns would score infinities."""
    with Joined() as joined:
        exchange, near = joined.exchange, joined.exchange.doorbell.socket
        with np.errstate(over="warn"), pytest.raises(RuntimeError, match="seterr"):
            ArenaExchange(
                exchange.arena, near, clock_ns=joined.clock, on_lost=lambda _: None, loop=joined.loop
            )


@pytest.mark.parametrize("rows", [1, 3])
def test_a_fault_while_rows_are_stored_leaks_none(rows: int) -> None:
    """A request that fails while it is stored takes no rows."""
    with Joined(capacity=16) as joined:
        with pytest.raises(ValueError, match="could not convert"):
            joined.exchange.submit(PuppetTicket(), [np.array([["a", "b"]] * rows)])
        assert joined.exchange.leased_rows == 0
        ticket = joined.submit(*range(rows))
        joined.settle()
        assert answer_of(ticket) == doubled(*range(rows))


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize(
    ("dtype", "bad"), [("int8", 128), ("int8", -129), ("uint8", 256), ("int16", 1 << 40), ("uint32", 1 << 32)]
)
def test_an_integer_that_does_not_fit_the_input_is_refused(dtype: str, bad: int, rows: int) -> None:
    """Integers do not wrap around, not even in the last row."""
    signature = Signature((TensorSpec("k", dtype, ()),), (TensorSpec("y", dtype, ()),))
    values = np.zeros(rows, np.int64 if dtype.startswith("i") else np.uint64)
    values[-1] = bad
    with Joined(PuppetRuntime(signature), capacity=16) as joined:
        with pytest.raises(InvalidInput, match=f"'k' does not fit {dtype}"):
            joined.exchange.submit(PuppetTicket(), [values])
        assert joined.exchange.leased_rows == 0


def test_integers_of_the_inputs_own_dtype_are_not_looked_through() -> None:
    """They fit: a body of bytes, an image say, is copied and nothing else."""

    class Untouched(np.ndarray[Any, np.dtype[Any]]):
        def min(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("somebody looks through them")

    signature = Signature((TensorSpec("k", "uint8", ()),), (TensorSpec("y", "uint8", ()),))
    with Joined(PuppetRuntime(signature), capacity=16) as joined:
        ticket = PuppetTicket()
        joined.exchange.submit(ticket, [np.array([0, 255], np.uint8).view(Untouched)])
        joined.settle()
        assert joined.runtime.batches == [[0, 255]]


def test_several_inputs_and_outputs_stay_together() -> None:
    """Inputs of different dtypes and shapes reach the model as one row each, and so do the outputs."""
    signature = Signature(
        (
            TensorSpec("image", "float32", (2, 3)),
            TensorSpec("kind", "int64", ()),
            TensorSpec("on", "bool", (2,)),
        ),
        (TensorSpec("sum", "float64", ()), TensorSpec("mask", "bool", (2,))),
    )

    def answer(inputs: list[np.ndarray]) -> list[np.ndarray]:
        image, kind, on = inputs
        return [image.sum(axis=(1, 2), dtype=np.float64) + kind, ~on]

    with Joined(PuppetRuntime(signature, answer), capacity=16) as joined:
        for rows in (1, 3, 40):
            image = np.arange(rows * 6, dtype=np.float64).reshape(rows, 2, 3)
            kind, on = np.arange(rows) * 100, np.arange(rows * 2).reshape(rows, 2) % 3 == 0
            ticket = PuppetTicket()
            joined.exchange.submit(ticket, [image, kind, on])
            joined.settle()
            assert ticket.answer is not None
            assert ticket.answer[0].tolist() == (image.sum(axis=(1, 2)) + kind).tolist()
            assert ticket.answer[1].tolist() == (~on).tolist()


def test_json_rows_come_back_as_they_were_written() -> None:
    """A variable output gives one text per row, through slices too."""
    runtime = PuppetRuntime(TEXTS, lambda inputs: [[b'{"x":%d}' % row[0] for row in inputs[0]]])
    with Joined(runtime) as joined:
        for rows in (1, 3, 40):
            ticket = joined.submit(*range(rows))
            joined.settle()
            assert ticket.texts == [b'{"x":%d}' % number for number in range(rows)]


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_text_that_does_not_fit_its_row_fails_its_request_alone(rows: int) -> None:
    """64 bytes fit, 65 do not."""
    runtime = PuppetRuntime(TEXTS, lambda inputs: [[b"x" * int(row[0]) for row in inputs[0]]])
    with Joined(runtime) as joined:
        good, bad = joined.submit(64), joined.submit(*[1] * (rows - 1), 65)
        joined.settle()
        assert good.texts == [b"x" * 64]
        assert (bad.completions, bad.failure()) == (1, OutputTooLarge)
        assert joined.exchange.leased_rows == 0


def test_bodies_travel_whole_and_give_their_memory_back() -> None:
    """A body of megabytes comes back as an answer of megabytes; then the row's memory is free."""
    runtime = PuppetRuntime(BODIES, lambda inputs: [[body[::-1] for body in inputs[0]]])
    with Joined(runtime) as joined:
        bodies = [b"", b"{}", b"ab" * MIB, b"c" * (4 * MIB)]
        tickets = [PuppetTicket() for _ in bodies]
        for ticket, body in zip(tickets, bodies, strict=True):
            joined.exchange.submit_body(ticket, body)
        joined.settle()
        assert [ticket.texts for ticket in tickets] == [[body[::-1]] for body in bodies]
        arena = joined.exchange.arena
        assert all(not arena.inputs[0][number].any() for number in (2, 3))
        assert all(not arena.outputs[0][number].any() for number in (2, 3))


def test_a_body_that_is_longer_than_a_row_is_refused() -> None:
    """Its caller gets the error, and no row is leased, at each try."""
    runtime = PuppetRuntime(BODIES, lambda inputs: [[body[:2] for body in inputs[0]]])
    with Joined(runtime, capacity=2) as joined:
        for _ in range(3):
            with pytest.raises(BodyTooLarge, match=r"5 MiB as the model's input; 4 MiB fit"):
                joined.exchange.submit_body(PuppetTicket(), bytes(5 * MIB))
        assert joined.exchange.idle
        ticket = PuppetTicket()
        joined.exchange.submit_body(ticket, b"fits")
        joined.settle()
        assert ticket.texts == [b"fi"]


def test_memory_of_a_burst_is_given_back() -> None:
    """Small bodies keep their memory, but of rows that nobody needs 64 do, the others lose it one by one."""
    runtime = PuppetRuntime(BODIES, lambda inputs: [[b"y" for _ in inputs[0]]])
    with Joined(runtime, capacity=200) as joined:
        arena = joined.exchange.arena

        def score(count: int) -> None:
            for _ in range(count):
                joined.exchange.submit_body(PuppetTicket(), b"x")
            joined.sweep()
            joined.settle()

        def count_nonzero_rows() -> int:
            columns = [arena.inputs[0][:, 0], arena.outputs[0][:, 0]]
            assert np.array_equal(*(column != 0 for column in columns))
            return int(np.count_nonzero(columns[0]))

        score(190)
        joined.clock.advance_ms(1000)
        joined.sweep()
        assert count_nonzero_rows() == 190, "all of them were in use since the last look"
        score(3)
        joined.clock.advance_ms(1000)
        for left in (189, 188, 187):
            joined.sweep()
            assert count_nonzero_rows() == left
        for _ in range(200):
            joined.sweep()
        assert count_nonzero_rows() == 64 + 3
        score(190)
        joined.clock.advance_ms(1000)
        joined.sweep()
        assert count_nonzero_rows() == 190


def test_a_failed_request_names_the_error_id_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets an id, the log has it beside the traceback, and nothing of that reaches the caller."""
    with Joined() as joined:
        joined.runtime.fails_for = {2}
        bad, good = joined.submit(1, 2), joined.submit(3)
        joined.settle()
        assert answer_of(good) == doubled(3)
        assert (bad.completions, bad.failure()) == (1, ModelFailed)
        assert isinstance(bad.error, ModelFailed)
        assert re.fullmatch("[0-9a-f]{16}", bad.error.error_id)
        assert caplog.text.count(bad.error.error_id) == 1
        assert "a secret of the log" in caplog.text
        assert "secret" not in str(bad.error)


def test_a_request_without_rows_tells_no_batch() -> None:
    """It was not run; nor was one whose answer was known, or is put together from slices."""
    ticket = PuppetTicket()
    ticket.rows = 0
    assert ticket.batch is None
    ticket.rows, ticket.sliced = 1, SlicedAnswer(Signature((), ()), 1)
    assert ticket.batch is None
