"""Answers that do not fit their rows: the request runs again in larger ones, and what happens if they do not come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson
import pytest
from tests.puppets import Joined, PuppetRuntime, puppet_service

from stoker.gateway.rows.exchange import ArenaExchange
from stoker.gateway.scoring import larger_rows as larger_rows_module
from stoker.gateway.scoring.call import Call
from stoker.gateway.scoring.larger_rows import LargerRows
from stoker.gateway.scoring.service import Service
from stoker.row_isolation import RowIsolation
from stoker.tensors import ModelTensors, Signature, TensorInfo, TensorSpec
from stoker.wire.packed import pack, unpack

ROOM = 4096
PACKED = Signature(
    (TensorSpec("tensors", "uint8", (ROOM,), variable=True),),
    (TensorSpec("tensors", "uint8", (ROOM,), variable=True),),
    takes="tensors",
    tensors=ModelTensors(
        (TensorInfo("n", "int64", (1,)),), (TensorInfo("y", "float32", (-1,)),), batched=False
    ),
)
"""A model that answers `n` numbers, with room for a thousand of them."""


def repeat(inputs: Any) -> list[list[bytes]]:
    return [[pack({"y": np.full(unpack(body)["n"][0], 0.5, np.float32)}) for body in inputs[0]]]


@dataclass
class Served:
    """A service, its device, and its requests for larger rows.

    Attributes:
        requests: Exchanges reported as too small, with the bytes that answers should have.
        answers: Status and JSON of each answer.
    """

    service: Service
    device: Joined
    requests: list[tuple[ArenaExchange, int]] = field(default_factory=list)
    answers: list[tuple[int, Any]] = field(default_factory=list)

    def score(self, count: int) -> Call:
        """Ask for `count` numbers, and let the device work."""
        body = orjson.dumps({"data": [count]})
        call = self.service.score(
            body,
            None,
            lambda status, _, body: self.answers.append((status, orjson.loads(body))),
            self.device.clock(),
        )
        self.device.settle()
        return call

    def enlarge(self) -> ArenaExchange:
        """Replace the exchange as the last request wants it."""
        old, size_bytes = self.requests[-1]
        self.device.runtime.signature = PACKED.with_answers(size_bytes)
        self.device.add_frontend()
        self.device.turn_device()
        new = self.device.exchanges[-1]
        self.service.attach(new)
        self.service.replace(old, new)
        self.device.settle()
        return new


@pytest.fixture
def served() -> Iterator[Served]:
    """A service with one replica."""
    service = puppet_service(max_body_bytes=1 << 20)
    with Joined(PuppetRuntime(PACKED, repeat), capacity=4) as device:
        made = Served(service, device)
        service.replicas.larger_rows = LargerRows(lambda *request: made.requests.append(request))
        service.attach(device.exchange)
        yield made


def test_an_answer_that_does_not_fit_is_not_lost(served: Served) -> None:
    """It is computed again where there is room, and those that come later go there at once."""
    served.score(10)
    served.score(2000)
    served.score(3000)
    old = served.device.exchanges[0]
    assert served.requests == [(old, 4 * ROOM)], "once for all that wait"
    assert served.answers == [(200, [0.5] * 10)]
    assert not served.service.idle
    new = served.enlarge()
    assert served.answers[1:] == [(200, [0.5] * 2000), (200, [0.5] * 3000)]
    served.service.sweep(served.device.clock())
    assert (served.service.exchanges, old.lost, served.service.idle) == ([new], True, True)
    runs = len(served.device.runtime.batches)
    served.score(4000)
    assert served.answers[3] == (200, [0.5] * 4000)
    assert (len(served.requests), len(served.device.runtime.batches)) == (1, runs + 1)


def test_rows_grow_until_the_answer_fits(served: Served) -> None:
    """Fourfold each time."""
    served.score(10_000)
    served.enlarge()
    assert served.answers == []
    served.enlarge()
    assert [size_bytes for _, size_bytes in served.requests] == [4 * ROOM, 16 * ROOM]
    assert served.answers == [(200, [0.5] * 10_000)]


def test_a_request_that_was_under_way_meanwhile_follows_the_others(served: Served) -> None:
    """It comes back from rows that were replaced already."""
    served.score(2000)
    old = served.device.exchanges[0]
    body = orjson.dumps({"data": [2500]})
    served.service.score(
        body, None, lambda status, *_: served.answers.append((status, None)), served.device.clock()
    )
    new = served.enlarge()
    assert [status for status, _ in served.answers] == [200, 200]
    assert len(served.requests) == 1
    assert not old.leased_rows
    assert served.service.replicas.only is new


def test_rows_that_were_replaced_twice_lead_to_the_last_ones(served: Served) -> None:
    """Those between were needed for a moment only, and are closed before a request comes back from the first."""
    first = served.device.exchanges[0]
    served.score(10_000)
    # The device hears late of the second one's row.
    queued: list[int] = []
    first.doorbell.ring, ring = queued.extend, first.doorbell.ring  # type: ignore[method-assign]
    served.score(9000)
    between, last = served.enlarge(), served.enlarge()
    served.service.sweep(served.device.clock())
    assert (first.lost, between.lost, last.lost) == (False, True, False)
    ring(queued)
    served.device.settle()
    assert served.answers == [(200, [0.5] * 10_000), (200, [0.5] * 9000)]


def test_request_that_waits_too_long_for_larger_rows_gets_504(served: Served) -> None:
    """Waiting for larger rows counts as the time of the model."""
    served.score(2000)
    served.device.clock.advance_ms(1001)
    served.service.sweep(served.device.clock())
    ((status, answer),) = served.answers
    assert (status, answer["code"]) == (504, "deadline_exceeded")
    served.enlarge()
    assert len(served.answers) == 1


def test_abandoned_request_is_not_run_with_larger_rows(served: Served) -> None:
    """Larger rows run no request that nobody waits for."""
    call = served.score(2000)
    call.abandon()
    runs = len(served.device.runtime.batches)
    served.enlarge()
    assert (served.answers, len(served.device.runtime.batches)) == ([], runs)
    assert not served.device.exchanges[1].leased_rows


def test_device_lost_meanwhile_fails_the_request(served: Served) -> None:
    """The request for larger rows goes with it: its successor needs a new one."""
    served.score(2000)
    served.device.kill_device()
    served.service.detach(served.device.exchange)
    ((status, answer),) = served.answers
    assert (status, answer["code"]) == (503, "device_lost")
    assert served.service.replicas.larger_rows.idle


def test_request_waiting_on_a_lost_replica_runs_on_another_one(served: Served) -> None:
    """The request for larger rows then goes to the other replica."""
    served.score(2000)
    with Joined(PuppetRuntime(PACKED, repeat), capacity=4) as other:
        served.service.attach(other.exchange)
        served.device.kill_device()
        served.service.detach(served.device.exchange)
        other.settle()
        assert (served.answers, served.requests[-1]) == ([], (other.exchange, 4 * ROOM))


def test_a_service_that_is_dismissed_answers_all(served: Served) -> None:
    """Those that wait, and those in rows that were replaced."""
    served.score(2000)
    served.service.leave_exchanges()
    assert [status for status, _ in served.answers] == [503]
    assert served.device.exchange.lost
    assert served.service.idle


def test_a_model_that_keeps_state_runs_each_request_once(served: Served) -> None:
    """The one whose answer has not fitted fails; those that come later find room."""
    isolation = RowIsolation(False, "read", "it counts", keeps_state=True)
    served.device.exchange.signature = replace(PACKED, isolation=isolation)
    served.score(2000)
    ((status, answer),) = served.answers
    assert (status, answer["code"]) == (500, "output_too_large")
    served.enlarge()
    assert len(served.device.runtime.batches) == 1
    served.score(2000)
    assert served.answers[1:] == [(200, [0.5] * 2000)]


@pytest.mark.parametrize("most", [None, ROOM])
def test_rows_that_cannot_grow(served: Served, most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody enlarges them, or the largest rows are too small."""
    if most is None:
        served.service.replicas.larger_rows = LargerRows()
    else:
        monkeypatch.setattr(larger_rows_module, "_MAX_ANSWER_BYTES", most)
    served.score(2000)
    ((status, answer),) = served.answers
    assert (status, answer["code"]) == (500, "output_too_large")
