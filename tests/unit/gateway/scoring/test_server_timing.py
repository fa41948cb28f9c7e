"""The `Server-Timing` header of an answer."""

import pytest
from tests.puppets import puppet_service

from stoker.gateway.scoring.call import Call

MS = 1_000_000


@pytest.mark.parametrize(
    ("waited_ns", "stages"),
    [
        (0, b"queue;dur=8.500, compute;dur=2.500"),
        (8_000_400, b"queue;dur=0.499, turn;dur=8.000, compute;dur=2.500"),
        # Its batch had offered to run before the request came.
        (20 * MS, b"queue;dur=0.000, turn;dur=8.500, compute;dur=2.500"),
    ],
)
def test_the_wait_for_a_turn_is_a_stage_of_its_own(waited_ns: int, stages: bytes) -> None:
    """The queue's time does not include it, and a request without it has no such stage."""
    answers: list[bytes] = []
    call = Call(puppet_service(), None, lambda status, lines, body: answers.append(lines), MS)
    call.rows, call.enqueued_ns, call.started_ns, call.finished_ns = 1, 2 * MS, 10 * MS + MS // 2, 13 * MS
    call.note_turn(waited_ns)
    call.answer_scored(b"{}", 14 * MS)
    (lines,) = answers
    assert b"\r\nserver-timing: parse;dur=1.000, " + stages + b", total;dur=13.000\r\n" in lines


def test_a_request_that_runs_again_has_waited_for_no_turn_yet() -> None:
    """Where it runs again there may be none."""
    call = Call(puppet_service(), None, lambda status, lines, body: None, 0)
    call.enqueued_ns, call.started_ns = 0, 5 * MS
    call.note_turn(3 * MS)
    call.reopen()
    assert call.turn_ns == 0


def test_a_request_that_fails_has_its_stages_up_to_then() -> None:
    """The last one is that in which it failed: while it was read, while it waited, or behind its run."""
    call = Call(puppet_service(), None, lambda status, lines, body: None, 2 * MS)
    assert call.stages_until(5 * MS) == {"total": 3 * MS, "parse": 3 * MS}
    call.enqueued_ns = 3 * MS
    assert call.stages_until(5 * MS) == {"total": 3 * MS, "parse": MS, "queue": 2 * MS}
    # Left over from an earlier run.
    call.started_ns = MS
    assert call.stages_until(5 * MS) == {"total": 3 * MS, "parse": MS, "queue": 2 * MS}
    call.started_ns, call.finished_ns = 4 * MS, 5 * MS
    assert call.stages_until(6 * MS) == {"total": 4 * MS, "parse": MS, "queue": MS, "compute": MS}
    assert call.key_name == "default"
