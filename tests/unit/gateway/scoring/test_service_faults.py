"""Faults of Stoker's own between a body and its answer: each caller gets an answer all the same."""

import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson
import pytest
from tests.http.raw_http import rows_body
from tests.puppets import TEXTS, Joined, PuppetRuntime, metric_memory, puppet_service

from stoker.errors import StokerError
from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.rows.ticket import Exchange
from stoker.gateway.scoring.call import Call
from stoker.gateway.scoring.dialects import RowsDialect, TensorDialect, submit_tensors
from stoker.gateway.scoring.images import ImageDialect, ImageScoring
from stoker.settings.image_input import ImageInput

INTERNAL = "internal"


class Callers:
    """A service and what its callers were answered.

    Attributes:
        answers: Status, and the rows or the error's code, in the order in which they came.
    """

    def __init__(self, joined: Joined, **more: Any) -> None:
        self.memory = metric_memory()
        self.joined = joined
        self.service = puppet_service(memory=self.memory, **more)
        self.service.attach(joined.exchange)
        self.answers: list[tuple[int, Any]] = []

    def score(self, number: float, **more: Any) -> Call:
        """Ask for one row."""
        return self.service.score(rows_body([number, 0]), None, self.note, time.monotonic_ns(), **more)

    def note(self, status: int, _: bytes, body: bytes) -> None:
        content = orjson.loads(body)
        self.answers.append((status, content["code"] if status != 200 else content))


@pytest.fixture
def joined() -> Iterator[Joined]:
    """A device that doubles."""
    with Joined() as joined:
        yield joined


def fail(*_: Any) -> Any:
    raise LookupError("a fault of the test")


def test_a_batch_that_cannot_be_encoded_is_encoded_row_by_row(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that does not suffice for all rows may suffice for each."""
    callers = Callers(joined)
    monkeypatch.setattr(callers.service.dialect, "_encode_each", fail)
    for number in (1, 2):
        callers.score(number)
    joined.settle()
    assert callers.answers == [(200, [[2.0, 0.0]]), (200, [[4.0, 0.0]])]


@pytest.mark.parametrize(
    "runtime", [PuppetRuntime(), PuppetRuntime(TEXTS, lambda inputs: [[b"1"] * len(inputs[0])])]
)
def test_an_answer_that_cannot_be_encoded_is_an_error(
    runtime: PuppetRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for ever; the log has the reason under the request's id."""
    with Joined(runtime) as joined:
        callers = Callers(joined)
        monkeypatch.setattr(callers.service.dialect, "_encode_each", fail)
        monkeypatch.setattr(callers.service.dialect, "encode", fail)
        call = callers.score(1)
        callers.score(2)
        joined.settle()
        assert callers.answers == [(500, INTERNAL), (500, INTERNAL)]
        assert f"request {call.ids.request_id.decode()}: scoring m failed" in caplog.text
        assert "a fault of the test" in caplog.text
        assert callers.memory.totals().model(0).requests()[500] == 2
        assert callers.service.idle


def test_an_answer_that_cannot_be_encoded_leaves_its_place_to_the_next(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service with a limit would else take one request less for the rest of its life."""
    callers = Callers(joined, max_concurrent_requests=1)
    with monkeypatch.context() as patched:
        patched.setattr(callers.service.dialect, "_encode_each", fail)
        patched.setattr(callers.service.dialect, "encode", fail)
        callers.score(1)
        joined.settle()
    callers.score(2)
    joined.settle()
    assert callers.answers == [(500, INTERNAL), (200, [[4.0, 0.0]])]


def test_a_request_that_there_is_no_memory_for_may_come_again(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may fit when others have ended: 503 with Retry-After, before the run and after it."""
    callers = Callers(joined)

    def no_memory(*_: object) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(callers.service.dialect, "_decode", no_memory)
        callers.score(1)
    with monkeypatch.context() as patched:
        patched.setattr(callers.service.dialect, "_encode_each", no_memory)
        patched.setattr(callers.service.dialect, "encode", no_memory)
        callers.score(2)
        joined.settle()
    callers.score(3)
    joined.settle()
    assert callers.answers == [(503, "overloaded"), (503, "overloaded"), (200, [[6.0, 0.0]])]


class ClumsyDialect(TensorDialect):
    """A protocol that cannot write its answers."""

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: object) -> None:
        rows = orjson.loads(body)["data"]
        call.write = self._fail
        submit_tensors(call, exchange, {"x": np.array(rows)})

    def _fail(self, outputs: Mapping[str, np.ndarray]) -> tuple[bytes, bytes]:
        raise RuntimeError("a fault of the test")

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        return error.status, b"", orjson.dumps({"code": f"clumsy {error.code}"})


def test_a_protocol_that_fails_answers_in_its_own_words(joined: Joined) -> None:
    """Its fault does not reach the request that came back with it."""
    callers = Callers(joined)
    callers.score(1, dialect=ClumsyDialect())
    callers.score(2)
    joined.settle()
    assert callers.answers == [(500, f"clumsy {INTERNAL}"), (200, [[4.0, 0.0]])]


def test_decoded_images_that_cannot_be_queued_are_an_error(joined: Joined) -> None:
    """They come on another way than a body, and must end like one."""
    callers = Callers(joined)
    call = callers.service.call_type(callers.service, None, callers.note, time.monotonic_ns())
    service = callers.service
    numbers = RowsDialect("m", joined.exchange.arena.signature, service.facts.non_finite)
    images = ImageScoring(ImageInput(1, 1, 1), max_pixels=1, max_rows_bytes=1)
    ImageDialect("m", images, numbers, service.choose).submit_rows(call, [np.array([["no", "numbers"]])])
    assert callers.answers == [(500, INTERNAL)]
    assert joined.exchange.idle


def test_the_log_joins_a_request_with_the_error_id_of_its_model(caplog: pytest.LogCaptureFixture) -> None:
    """The device knows the model and its traceback, the frontend whose request it was; both have the error id."""
    runtime = PuppetRuntime()
    runtime.fails_for = {1}
    with Joined(runtime) as joined:
        call = Callers(joined).score(1)
        joined.turn_frontends()
        # A model's thread has its name.
        device = threading.Thread(target=joined.turn_device, name="m")
        device.start()
        device.join()
        joined.settle()
        (error_id,) = re.findall(r"error id ([0-9a-f]{16}): m: scoring failed", caplog.text)
        request_id = call.ids.request_id.decode()
        assert f"request {request_id}: scoring m failed under error id {error_id}" in caplog.text


def test_answer_that_is_not_finite_costs_only_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where that is an error, it is the error of its request alone, and no fault of the server."""

    def spoil(inputs: Any) -> list[np.ndarray]:
        return [np.where(inputs[0] < 0, np.nan, inputs[0])]

    with Joined(PuppetRuntime(answer=spoil)) as joined:
        callers = Callers(joined, non_finite="error")
        for number in (-1, 2, 3):
            callers.score(number)
        joined.settle()
        assert callers.answers == [(500, "non_finite_output"), (200, [[2.0, 0.0]]), (200, [[3.0, 0.0]])]
        requests = callers.memory.totals().model(0).requests()
        assert (requests[200], requests[500]) == (2, 1)
    assert not caplog.records


def test_errors_in_the_log_name_their_request(joined: Joined, caplog: pytest.LogCaptureFixture) -> None:
    """Id, trace, model and version are facts beside the message."""
    callers = Callers(joined)
    ids = RequestIds(b"mine", traceparent=b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    call = callers.service.call_type(callers.service, ids, callers.note, time.monotonic_ns())
    call.refuse_for_fault(LookupError("a fault of the test"))
    assert callers.answers == [(500, INTERNAL)]
    service = callers.service
    assert caplog.records[-1].facts == {  # type: ignore[attr-defined]
        "request_id": "mine",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "model": service.name,
        "version": service.version,
    }
