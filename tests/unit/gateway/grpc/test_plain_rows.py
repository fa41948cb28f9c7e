"""Infer requests of one row, through a connection, an arena and a puppet of the device; every turn is the test's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.puppets import Joined, metric_memory, puppet_service
from tests.unit.gateway.grpc.test_grpc_connections import INFER, PuppetServer, call
from tests.unit.wire.http2.talk import data, headers

from stoker.gateway.gateway import Gateway
from stoker.gateway.grpc.framing import PREFIX_BYTES, add_prefix
from stoker.gateway.grpc.messages import ModelInferRequest, ModelInferResponse
from stoker.gateway.grpc.requests import PlainRow, RequestDecoder
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.rows.cache import AnswerCache
from stoker.gateway.scoring.service import Service
from stoker.wire.http2.frames import PREFACE, Kind, settings


class Caller:
    """A caller of one model, on one connection."""

    def __init__(self, joined: Joined) -> None:
        self.joined = joined
        self.memory = memory = metric_memory()
        self.service: Service = puppet_service("m", memory, max_body_bytes=1 << 20)
        self.service.attach(joined.exchange)
        self.turn(self._connect, Gateway(ModelDirectory({"m": self.service}), memory))
        self.number = -1

    def _connect(self, gateway: Gateway) -> None:
        self.server = PuppetServer(gateway=gateway)
        self.server.send(PREFACE, settings({}))

    def turn(self, do: Any, *arguments: Any) -> None:
        """Do something in a turn of the frontend's loop."""
        self.joined.loop.call_soon(do, *arguments)
        self.joined.turn_frontends()

    def ask(self, *requests: Any) -> list[Any]:
        """Send requests in one turn, and return their answers in the same order: messages, or errors' texts."""
        self.server.read()
        first, sent = self.number + 2, b""
        for request in requests:
            self.number += 2
            sent += headers(self.number, call(INFER)) + data(
                self.number, add_prefix(request.SerializeToString()), ends=True
            )
        self.turn(self.server.send, sent)
        self.joined.settle()
        self.joined.turn_frontends()
        answers: dict[int, Any] = {}
        for kind, _, number, payload in self.server.read():
            if kind == Kind.DATA:
                answers[number] = ModelInferResponse.FromString(payload[PREFIX_BYTES:])
            elif kind == Kind.HEADERS:
                answers.setdefault(number, payload)
        return [answers[number] for number in range(first, self.number + 1, 2)]


@pytest.fixture
def caller() -> Iterator[Caller]:
    """One of a model that doubles two numbers."""
    with Joined() as joined:
        yield Caller(joined)


def row(*numbers: float, shape: tuple[int, ...] = (1, 2), **more: Any) -> Any:
    """A raw request."""
    made = ModelInferRequest(model_name="m", raw_input_contents=[np.array(numbers, "<f4").tobytes()], **more)
    made.inputs.add(name="x", datatype="FP32", shape=shape)
    return made


def content_of(answer: Any) -> tuple[str, list[float]]:
    """Id and numbers of an answer."""
    (content,) = answer.raw_output_contents
    assert [(one.name, one.datatype, list(one.shape)) for one in answer.outputs] == [("y", "FP32", [1, 2])]
    assert (answer.model_name, answer.model_version) == ("m", "1")
    return answer.id, np.frombuffer(content, "<f4").tolist()


def test_each_row_is_answered_with_its_own_numbers_and_id(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a form that is known are not decoded into arrays; with an id or without one, many in one turn."""
    assert content_of(*caller.ask(row(1, 2))) == ("", [2, 4])
    monkeypatch.setattr(RequestDecoder, "decode", lambda *_: pytest.fail("it has been decoded"))
    requests = [row(3, 4), row(5, 6, id="b"), row(7, 8), row(9, 10, id="c"), row(-1, -2)]
    expected = [("", [6, 8]), ("b", [10, 12]), ("", [14, 16]), ("c", [18, 20]), ("", [-2, -4])]
    assert list(map(content_of, caller.ask(*requests))) == expected
    assert caller.joined.exchange.idle
    caller.service.metrics.flush()
    stages_ns = caller.memory.totals().model(0).stage_ns()
    assert stages_ns["parse"][0] == stages_ns["total"][0] == 6
    assert stages_ns["parse"][1] <= stages_ns["total"][1]


def test_answers_are_as_each_request_wants_them(caller: Caller) -> None:
    """Beside others of the same turn: classes, typed contents, several rows, a wrong size."""
    classes = row(1, 2, outputs=[{"name": "y", "parameters": {"classification": {"int64_param": 1}}}])
    typed = ModelInferRequest(model_name="m")
    typed.inputs.add(name="x", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([3, 4])
    several, short = row(1, 2, 3, 4, shape=(2, 2)), row(5)
    for _ in range(2):
        plain, best, as_typed, both, wrong, last = caller.ask(
            row(1, 2), classes, typed, several, short, row(5, 6)
        )
        assert content_of(plain) == ("", [2, 4])
        assert best.raw_output_contents == [b"\n\0\0\x004.000000:1"]
        assert list(as_typed.outputs[0].contents.fp32_contents) == [6, 8]
        assert np.frombuffer(both.raw_output_contents[0], "<f4").tolist() == [2, 4, 6, 8]
        assert b"needs 8" in wrong
        assert content_of(last) == ("", [10, 12])


def test_a_timeout_and_a_tier_are_taken_from_known_forms_too(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose form is known is as urgent as it says."""
    seen: list[tuple[int | None, int]] = []
    submit = caller.joined.exchange.submit_decoded

    def note(ticket: Any, *rest: Any) -> None:
        seen.append((ticket.urgency and ticket.urgency.tier, ticket.deadline_ns - ticket.received_ns))
        submit(ticket, *rest)

    monkeypatch.setattr(caller.joined.exchange, "submit_decoded", note)
    urgent = row(1, 2)
    urgent.parameters["timeout"].int64_param = 5000
    urgent.parameters["priority"].int64_param = 3
    for _ in range(2):
        caller.ask(urgent)
    assert seen == [(2, 5_000_000)]


def test_kept_answers_are_found_by_rows_that_were_not_decoded() -> None:
    """A cache in front of the arena gets an array of the row, and known rows are not run again."""
    with Joined(cache=AnswerCache(1 << 20, lambda *_: None)) as joined:
        caller = Caller(joined)
        for _ in range(3):
            assert content_of(*caller.ask(row(1, 2))) == ("", [2, 4])
        assert joined.runtime.rows_run == [1]


def test_row_of_another_size_than_the_arenas_is_not_stored_in_place() -> None:
    """It becomes an array, whose size is checked when it is stored."""
    with Joined() as joined:
        caller = Caller(joined)
        caller.ask(row(1, 2))
        (codec,) = caller.service.codecs.values()
        (form,) = codec.decoder.forms.values()
        known: PlainRow = form.row
        memory = memoryview(bytearray(4))
        (array,) = known.read(memoryview(np.array([1, 2], "<f4").tobytes()), memory)
        assert (array.tolist(), bytes(memory)) == ([[1, 2]], bytes(4))
