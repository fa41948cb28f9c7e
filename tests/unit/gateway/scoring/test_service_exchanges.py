"""A service with several replicas: the choice of one, and the loss of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import orjson
import pytest
from tests.puppets import Joined, PuppetRuntime, puppet_service

from stoker.gateway.http.responses import Respond
from stoker.gateway.scoring.call import Call
from stoker.gateway.scoring.replicas import Replicas
from stoker.gateway.scoring.service import Service
from stoker.gateway.scoring.service_facts import ServiceFacts
from stoker.row_isolation import RowIsolation
from stoker.tensors import Signature, TensorSpec

CAPACITY = 16
WIDER = Signature((TensorSpec("x", "float32", (3,)),), (TensorSpec("y", "float32", (3,)),))


@dataclass
class Served:
    """A service and the device processes that serve its replicas.

    Attributes:
        answers: Status and JSON of each answer, in the order in which they came.
    """

    service: Service
    replicas: list[Joined] = field(default_factory=list)
    answers: list[tuple[int, object]] = field(default_factory=list)

    def note(self, status: int, _: bytes, body: bytes) -> None:
        self.answers.append((status, orjson.loads(body)))

    def score(self, rows: int = 1, respond: Respond | None = None) -> Call:
        """Score so many rows of ones."""
        body = orjson.dumps({"data": [[1, 1]] * rows})
        return self.service.score(body, None, respond or self.note, self.replicas[0].clock())

    def leased(self) -> list[int]:
        """How many rows requests hold in each replica."""
        return [replica.exchange.leased_rows for replica in self.replicas]

    def settle(self) -> None:
        for replica in self.replicas:
            replica.settle()

    def disconnect(self, number: int) -> None:
        """Let the device process of a replica die, and its frontend hear of it."""
        replica = self.replicas[number]
        replica.kill_device()
        replica.turn_frontends()
        self.service.detach(replica.exchange)


@pytest.fixture
def serve() -> Iterator[object]:
    """Make a service with so many replicas of 16 rows each."""
    service = puppet_service("digits", timeout_ms=60_000, max_body_bytes=1 << 20)
    with ExitStack() as joined:

        def make(count: int) -> Served:
            served = Served(service)
            for _ in range(count):
                served.replicas.append(joined.enter_context(Joined(capacity=CAPACITY)))
                service.attach(served.replicas[-1].exchange)
            return served

        yield make


def test_a_service_is_ready_while_one_replica_lives(serve) -> None:
    """Without any it is not; each one that comes or goes changes that only if it is the first or last."""
    served = serve(2)
    assert served.service.ready
    served.disconnect(0)
    assert served.service.ready
    served.disconnect(1)
    assert not served.service.ready
    served.score()
    ((status, answer),) = served.answers
    assert (status, answer["code"]) == (503, "not_ready")


def test_the_only_replica_is_found_without_a_search(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most requests take this path; it does not compare queues, nor does it once one of two replicas is lost."""

    def searched(_: Replicas) -> None:
        raise AssertionError("searched")

    served = serve(2)
    served.disconnect(0)
    monkeypatch.setattr(Replicas, "least_loaded", searched)
    served.score()
    served.settle()
    assert served.answers == [(200, [[2, 2]])]
    assert served.service.replicas.only is served.replicas[1].exchange


def test_rows_go_to_the_replica_with_the_fewest(serve) -> None:
    """A large request on one replica sends the small ones to the others until they are level."""
    served = serve(3)
    served.score(rows=4)
    busy = served.leased().index(4)
    for _ in range(7):
        served.score()
    assert served.leased()[busy] == 4
    assert sorted(served.leased()) == [3, 4, 4]
    assert served.service.leased_rows == 11
    served.settle()
    assert [status for status, _ in served.answers] == [200] * 8
    assert served.service.leased_rows == 0


def test_idle_replicas_take_turns(serve) -> None:
    """Of those that are equally loaded, the one that was chosen longest ago."""
    served = serve(3)
    for _ in range(9):
        served.score()
        served.settle()
    assert [len(replica.runtime.rows_run) for replica in served.replicas] == [3, 3, 3]


def test_overloaded_means_that_all_replicas_are_full(serve) -> None:
    """Every row of every replica is taken before a request is refused, and the next free one is used."""
    served = serve(2)
    for _ in range(2 * CAPACITY):
        served.score()
    assert served.answers == []
    served.score()
    ((status, answer),) = served.answers
    assert (status, answer["code"]) == (503, "overloaded")
    served.replicas[1].settle()
    served.score()
    assert served.leased() == [CAPACITY, 1]


def test_a_request_that_no_replica_can_hold_is_overloaded(serve) -> None:
    """The one with the most free rows refuses for all, even if their free rows together would do."""
    served = serve(2)
    for rows in (8, 8, 7, 7):
        served.score(rows=rows)
    assert served.leased() == [15, 15]
    served.score(rows=2)
    ((status, answer),) = served.answers
    assert (status, answer["code"]) == (503, "overloaded")
    served.score()
    assert sum(served.leased()) == 31


@pytest.mark.parametrize("rows", [1, 3, 10])
def test_requests_of_a_lost_replica_run_on_another_one(serve, rows: int) -> None:
    """Requests of any number of rows are answered although their replica is lost."""
    served = serve(2)
    for _ in range(2):
        served.score(rows=rows)
    assert min(served.leased()) > 0
    served.disconnect(0)
    assert served.answers == []
    served.settle()
    assert served.answers == [(200, [[2, 2]] * rows)] * 2
    assert len(served.replicas[1].runtime.rows_run) == 2 * rows
    assert served.service.leased_rows == 0


def test_a_request_runs_again_once(serve) -> None:
    """A request may be the cause of the crashes, so the third replica does not get it."""
    served = serve(3)
    served.score()
    for _ in range(2):
        holds = [replica.exchange.leased_rows and not replica.exchange.lost for replica in served.replicas]
        served.disconnect(holds.index(True))
    ((status, answer),) = served.answers
    assert (status, answer["code"]) == (503, "device_lost")
    assert served.service.leased_rows == 0


def test_abandoned_request_of_a_lost_replica_is_not_run_again(serve) -> None:
    """Nobody waits for the answer of an abandoned request, so no other replica runs it."""
    served = serve(2)
    served.score().abandon()
    held = served.leased().index(1)
    served.disconnect(held)
    served.settle()
    assert served.replicas[1 - held].runtime.rows_run == []
    assert served.answers == []


def test_request_of_a_lost_replica_is_refused_if_the_others_are_full(serve) -> None:
    """It gets the answer of a new request: 503, overloaded."""
    served = serve(2)
    served.score(rows=5)
    held = served.leased().index(5)
    for _ in range(2):
        served.replicas[1 - held].submit(*range(CAPACITY // 2))
    served.disconnect(held)
    ((status, answer),) = served.answers
    assert (status, answer["code"]) == (503, "overloaded")


def test_a_service_that_leaves_runs_nothing_again(serve) -> None:
    """It leaves all its replicas at once, and their requests get an error."""
    served = serve(2)
    for _ in range(2):
        served.score()
    served.service.leave_exchanges()
    assert [(status, answer["code"]) for status, answer in served.answers] == [(503, "device_lost")] * 2


def test_lost_replica_of_a_script_costs_only_its_requests(serve) -> None:
    """They may have run, so they get 503 device_lost; those of the other replica and later ones are answered."""
    served = serve(2)
    served.service.facts = ServiceFacts("digits", framework="script")
    for _ in range(6):
        served.score()
    assert served.leased() == [3, 3]
    served.disconnect(0)
    assert [(status, answer["code"]) for status, answer in served.answers] == [(503, "device_lost")] * 3
    served.score()
    served.settle()
    assert [status for status, _ in served.answers[3:]] == [200] * 4
    assert len(served.replicas[1].runtime.rows_run) == 4


def test_lost_replica_of_a_model_with_state_costs_its_requests(serve) -> None:
    """They may have changed it already: 503 device_lost, and no other replica has seen them."""
    served = serve(2)
    isolation = RowIsolation(True, "said", "batching: rows", keeps_state=True)
    served.service.signature = replace(served.service.signature, isolation=isolation)
    served.score()
    held = served.leased().index(1)
    served.disconnect(held)
    assert [(status, answer["code"]) for status, answer in served.answers] == [(503, "device_lost")]
    served.settle()
    assert served.replicas[1 - held].runtime.rows_run == []


def test_request_right_after_a_lost_one_goes_to_the_other_replica(serve) -> None:
    """A pipelined request is scored while its predecessor fails: it must not go to the lost replica."""
    served = serve(2)
    served.service.facts = ServiceFacts("digits", framework="script")

    def again(status: int, lines: bytes, body: bytes) -> None:
        served.note(status, lines, body)
        served.score()

    served.score(respond=again)
    lost = served.leased().index(1)
    # So that the lost replica has fewer rows than the other one.
    for _ in range(3):
        served.replicas[1 - lost].submit(1)
    served.disconnect(lost)
    served.settle()
    assert [status for status, _ in served.answers] == [503, 200]


def test_a_replica_that_comes_back_is_used_again(serve) -> None:
    """It has new rows, all of them free, so it gets the next requests."""
    served = serve(2)
    served.disconnect(0)
    for _ in range(4):
        served.score()
    with Joined(capacity=CAPACITY) as successor:
        served.service.attach(successor.exchange)
        served.replicas.append(successor)
        for _ in range(3):
            served.score()
        assert served.leased()[1:] == [4, 3]


def test_a_model_that_comes_back_changed_is_read_anew(serve) -> None:
    """When no replica is left, the next one sets the signature."""
    served = serve(1)
    served.disconnect(0)
    runtime = PuppetRuntime(WIDER)
    with Joined(runtime, capacity=CAPACITY) as successor:
        served.service.attach(successor.exchange)
        served.service.score(b'{"data": [[1, 2, 3]]}', None, served.note, successor.clock())
        successor.settle()
    assert served.answers == [(200, [[2, 4, 6]])]
