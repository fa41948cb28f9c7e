"""Consequences of a fault: lost requests, the time to the next answer, and memory."""

import socket
import threading
from contextlib import contextmanager, suppress

import pytest
from tests.patience import PATIENCE_S

from stoker_bench.contestants.servers import HOST, free_port
from stoker_bench.gpu.faults import (
    NO_ANSWER,
    NO_CONNECTION,
    Answer,
    FaultOptions,
    MemoryRun,
    MemorySample,
    TimedLoad,
    count_answers,
    recovery_s,
    summarise_kill,
    wait_for,
)

REQUEST = (b"POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\n", memoryview(b"rows"))


def answer(began_s: float, ended_s: float, status: int = 200, what: str = "") -> Answer:
    return Answer(began_s, ended_s, status, what or str(status))


def test_recovery_is_the_first_success_of_a_request_sent_after_the_fault() -> None:
    """An answer to a request that was under way does not count, nor does a failure."""
    answers = [
        answer(9, 9.5),
        answer(9.9, 10.1),
        answer(10.2, 10.3, 503),
        answer(11, 11.5),
        answer(11, 11.25),
    ]
    assert recovery_s(answers, 10) == 1.25
    assert recovery_s(answers[:3], 10) is None


def test_a_killed_process_costs_what_failed_after_it() -> None:
    """Rates are those before the fault and after the recovery; failures before the fault are not its."""
    answers = [
        answer(8, 8.1, 503, "503 not_ready"),
        *[answer(9, 9.5)] * 4,
        answer(9.9, 10.2, 0, NO_ANSWER),
        answer(10.3, 10.4, 503, "503 not_ready"),
        answer(10.5, 12),
        *[answer(13, 13.1)] * 6,
    ]
    run = summarise_kill("mlp", FaultOptions(callers=3), answers, began_s=8, fault_s=10, ended_s=15)
    assert run.recovery_s == 2
    assert run.lost == 2
    assert run.before_per_s == 2
    assert run.after_per_s == 2
    assert run.longest_wait_s == 1.5
    assert run.told == {NO_ANSWER: 1, "503 not_ready": 1, "200": 1}


def test_without_recovery_there_is_no_rate_after_it() -> None:
    """A server that stays away has neither a recovery nor a rate."""
    run = summarise_kill("mlp", FaultOptions(), [answer(9, 9.5)], began_s=8, fault_s=10, ended_s=15)
    assert (run.recovery_s, run.after_per_s, run.lost) == (None, 0, 0)


@contextmanager
def serving(answers: list[bytes | None]):
    """Serve from a thread, one connection after the other: each request gets the next answer, None hangs up."""
    left = iter(answers)
    size = sum(map(len, REQUEST))

    def serve_connection(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as requests, suppress(ConnectionError):
            while requests.read(size):
                answer = next(left, None)
                if answer is None:
                    return
                connection.sendall(answer)

    def serve(listener: socket.socket) -> None:
        for _ in range(1 + answers.count(None)):
            serve_connection(listener.accept()[0])

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_every_answer_is_kept_with_what_it_said() -> None:
    """A success, an error with its code, and a connection that ended, in order; then the caller comes back."""
    good = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"
    busy = b"HTTP/1.1 503 Busy\r\nx-stoker-error-code: overloaded\r\ncontent-length: 0\r\n\r\n"
    with (
        serving([good, busy, good, None, good]) as port,
        TimedLoad(HOST, port, lambda: REQUEST, callers=1) as load,
    ):
        assert wait_for(lambda: len(load.answers) >= 5, timeout_s=PATIENCE_S)
        answers = load.answers[:5]
    assert [each.what for each in answers] == ["200", "503 overloaded", "200", NO_ANSWER, "200"]
    assert [each.succeeded for each in answers] == [True, False, True, False, True]
    assert all(each.began_s <= each.ended_s for each in answers)
    assert count_answers(answers) == {"200": 3, "503 overloaded": 1, NO_ANSWER: 1}


def test_a_refused_connection_is_an_answer_too() -> None:
    """Where nobody listens, callers try again and each refusal is kept."""
    with TimedLoad(HOST, free_port(), lambda: REQUEST, callers=1) as load:
        assert wait_for(lambda: len(load.answers) >= 2, timeout_s=PATIENCE_S)
    assert {each.what for each in load.answers} == {NO_CONNECTION}


def test_a_wait_ends_when_its_time_is_over() -> None:
    """What never holds is given up."""
    assert not wait_for(lambda: False, timeout_s=0.0)


@pytest.mark.parametrize(("gpu", "growth"), [([1, 5, 5, 6], 1), ([None] * 4, None)])
def test_growth_counts_from_when_memory_had_settled(gpu: list[int | None], growth: int | None) -> None:
    """What is taken at first, when each size of batch comes for the first time, is no growth."""
    samples = tuple(
        MemorySample(at_s, gpu_bytes, 10 + number)
        for number, (at_s, gpu_bytes) in enumerate(zip((0, 10, 50, 100), gpu, strict=True))
    )
    run = MemoryRun("mlp", 100, 7, {"200": 7, "503 overloaded": 2}, samples)
    assert run.settled is samples[1]
    assert run.growth_bytes(gpu=True) == growth
    assert run.growth_bytes(gpu=False) == 2
    assert run.errors == 2
