"""Puppets of the server's seams: a model, a clock, a request, and both sides of an arena turned by hand.

Nothing here starts a thread or sleeps. A test makes a `Joined`, submits rows through its exchanges, and says
when each event loop and when the device takes its turn; the doorbells and the arenas between them are real.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.patience import PATIENCE_S

from stoker.arena import Arena
from stoker.device.auditing import AuditPolicy
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes
from stoker.device.canary import Canary
from stoker.device.device_turns import ModelTurn
from stoker.device.first_batches import is_pipelined
from stoker.device.lanes import Lane
from stoker.device.pipelined_worker import PipelinedWorker
from stoker.device.sequence_worker import SequenceWorker
from stoker.device.text_worker import TextWorker
from stoker.device.worker import Worker
from stoker.errors import StokerError
from stoker.gateway.pipelines.service import PipelineService
from stoker.gateway.rows.cache import AnswerCache, CachedExchange
from stoker.gateway.rows.exchange import ArenaExchange
from stoker.gateway.rows.sequences import SequenceExchange, SequenceReplicas
from stoker.gateway.rows.ticket import Ticket
from stoker.gateway.rows.urgency import Urgency
from stoker.gateway.scoring.limited_service import LimitedService
from stoker.gateway.scoring.service import Service
from stoker.gateway.scoring.service_facts import Limits, ServiceFacts
from stoker.gateway.served_models import ServedModel
from stoker.keys.access import Access
from stoker.metrics.memory import MetricMemory
from stoker.metrics.totals import ModelTotals
from stoker.runtimes.base import OutOfMemory, Outputs, TokenRuntime
from stoker.settings.choices import WORDS, NonFinite
from stoker.settings.pipelines import Pipeline
from stoker.tensors import Signature, TensorSpec

STEADY = settings()
"""Settings of the profile that was chosen for this run (`conftest.py`); tests that need others begin with these."""


def numbers(dtype: str, shapes: st.SearchStrategy[tuple[int, ...]]) -> st.SearchStrategy[np.ndarray]:
    """Arrays of a dtype, `bfloat16` among them, of which hypothesis knows nothing."""
    if dtype != "bfloat16":
        return arrays(dtype, shapes)
    TensorSpec("x", dtype, ())
    return arrays("int16", shapes).map(lambda array: array.astype(dtype))


ROWS = Signature((TensorSpec("x", "float32", (2,)),), (TensorSpec("y", "float32", (2,)),))
"""Rows of two numbers in, rows of two numbers out."""
TEXTS = Signature((TensorSpec("x", "float32", (2,)),), (TensorSpec("result", "uint8", (64,), variable=True),))
"""Rows of two numbers in, up to 64 bytes of JSON text per row out."""
BODIES = Signature(
    (TensorSpec("raw_data", "uint8", (1 << 22,), variable=True),),
    (TensorSpec("result", "uint8", (1 << 22,), variable=True),),
    takes="body",
)
"""Whole bodies of up to 4 MiB in, JSON texts out."""

FAR_NS = 1 << 60
"""A deadline that no test reaches."""

SMALL_DOORBELL_BYTES = 1
"""The kernel rounds this up to the smallest buffer that it has: a few messages."""


class HandClock:
    """A clock in nanoseconds that stands still until a test moves it, or goes on by `ticks_ns` when it is read."""

    def __init__(self, now_ns: int = 1_000_000_000) -> None:
        self.now_ns = now_ns
        self.ticks_ns = 0

    def __call__(self) -> int:
        self.now_ns += self.ticks_ns
        return self.now_ns

    def advance_ms(self, elapsed_ms: float) -> None:
        """Move it forward."""
        self.now_ns += round(elapsed_ms * 1e6)


class SecondsClock:
    """A clock in seconds that stands still until a test moves it."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class PuppetFailure(Exception):
    """The error of a puppet that a test makes fail."""


def double(inputs: Sequence[Any]) -> Outputs:
    """The answer of a puppet for `ROWS`: two times each number."""
    return [inputs[0] * 2]


class PuppetRuntime:
    """A model whose behaviour a test sets.

    Attributes:
        signature: What it takes and gives.
        answer: Computes the outputs of a batch from its inputs.
        fails_for: A batch fails if the first number of one of its rows is among these.
        failure: What it raises then.
        fits_rows: A batch with more rows than that is out of memory.
        during: Called in the middle of each run.
        hold: If set, each run waits for this event.
        entered: Set as soon as a run waits for `hold`.
        batches: A copy of the first input of each batch that it was given, as a list of rows.
    """

    def __init__(
        self, signature: Signature = ROWS, answer: Callable[[Sequence[Any]], Outputs] = double
    ) -> None:
        self.signature = signature
        self.answer = answer
        self.fails_for: set[float] = set()
        self.failure: type[BaseException] = PuppetFailure
        self.fits_rows: float = math.inf
        self.during: Callable[[], None] = lambda: None
        self.hold: threading.Event | None = None
        self.entered = threading.Event()
        self.batches: list[list[Any]] = []

    def run(self, inputs: Sequence[Any]) -> Outputs:
        """Run one batch."""
        first = inputs[0]
        self.batches.append(list(first) if isinstance(first, list) else first.tolist())
        if self.hold is not None:
            self.entered.set()
            assert self.hold.wait(PATIENCE_S), "the test never let the puppet go on"
        self.during()
        if len(first) > self.fits_rows:
            raise OutOfMemory(f"the puppet has no memory for {len(first)} rows")
        if not isinstance(first, list) and self.fails_for.intersection(first.reshape(len(first), -1)[:, 0]):
            raise self.failure("the puppet was told to fail: a secret of the log")
        return self.answer(inputs)

    @property
    def rows_run(self) -> list[float]:
        """The first number of each row that was run, in order."""
        return [row[0] for batch in self.batches for row in batch]


class PuppetTicket(Ticket):
    """A request that keeps its answer.

    Attributes:
        completions: How often it was completed.
        answer: Copies of its outputs, or None if it failed.
        texts: Its first output where that is variable.
    """

    __slots__ = ("answer", "completions", "texts", "then")

    def __init__(self, deadline_ns: int = FAR_NS, then: Callable[[], None] = lambda: None) -> None:
        super().__init__(deadline_ns)
        self.completions = 0
        self.answer: list[np.ndarray] | None = None
        self.texts: list[bytes] | None = None
        self.then = then

    def complete(self) -> None:
        """Keep the outputs."""
        self.completions += 1
        if self.error is None:
            if self.exchange.arena.signature.outputs[0].variable:
                self.texts = list(self.output_texts(0))
            else:
                self.answer = [array.copy() for array in self.outputs()]
        self.then()

    def failure(self) -> type[StokerError] | None:
        """The class of its error."""
        return None if self.error is None else type(self.error)


class JoiningTicket(PuppetTicket):
    """A request that is completed together with others."""

    __slots__ = ("company",)

    joins = True

    def complete_together(self, tickets: list[JoiningTicket], outputs: np.ndarray) -> None:
        """Keep the outputs and how many there were."""
        for ticket, row in zip(tickets, outputs, strict=True):
            ticket.completions += 1
            ticket.answer = [row[np.newaxis].copy()]
            ticket.company = len(tickets)
            ticket.then()


def rows_of(*first: float, width: int = 2) -> list[np.ndarray]:
    """Rows for one input as the decoder makes them: row i starts with `first[i]`, the rest counts up by a half."""
    return [np.array([[number + 0.5 * place for place in range(width)] for number in first], np.float64)]


def doubled(*first: float) -> list[list[float]]:
    """The answer for rows that start with these numbers."""
    return (rows_of(*first)[0] * 2).tolist()


def answer_of(ticket: PuppetTicket) -> list[list[float]]:
    """The only output of a ticket that was answered, once."""
    assert (ticket.completions, ticket.error) == (1, None)
    assert ticket.answer is not None
    (output,) = ticket.answer
    assert output.dtype == np.float32
    return output.tolist()


class Joined:
    """Exchanges of some frontends, each with an arena of its own, and the worker that serves them all.

    Attributes:
        clock: The clock of all of them.
        runtime: The model.
        runtimes: All its instances.
        worker: The device's side.
        exchanges: The frontends' sides.
        lanes: The worker's ends of them.
        lost: Frontends whose exchange has said that the device is gone.
    """

    def __init__(
        self,
        runtime: PuppetRuntime | None = None,
        *,
        capacity: int = 16,
        policy: BatchPolicy | None = None,
        frontends: int = 1,
        doorbell_bytes: int | None = None,
        further: Sequence[PuppetRuntime] = (),
        sizes: BatchSizes | None = None,
        canary: Canary | None = None,
        audit: AuditPolicy | None = None,
        turn: ModelTurn | None = None,
        cache: AnswerCache | None = None,
        packed: bool = False,
    ) -> None:
        """Join them.

        Args:
            runtime: The model; by default one that doubles.
            capacity: Rows of each arena.
            policy: Settings of batching.
            frontends: How many.
            doorbell_bytes: How much a doorbell takes before it is full.
            further: What further instances of the model run.
            sizes: The sizes of batches.
            canary: The canary.
            audit: How it is audited.
            turn: Its part in the turns of its device.
            cache: Answers that the frontends keep, all of them the same.
            packed: Whether other models are in its process.
        """
        self._cache = cache
        self.clock = HandClock()
        self.runtime = runtime or PuppetRuntime()
        self.runtimes = [self.runtime, *further]
        self.lost: list[int] = []
        self.exchanges: list[ArenaExchange] = []
        self.lanes: list[Lane] = []
        self.memory = metric_memory()
        self.loop = asyncio.new_event_loop()
        self._capacity, self._doorbell_bytes = capacity, doorbell_bytes
        self._device_lives = True
        policy = policy or BatchPolicy()
        self._by_target = policy.target_ms is not None
        metrics = self.memory.page(64).model(0)
        run_began = metrics.run_began if packed else None
        kind: Callable[..., Worker] = SequenceWorker if self.runtime.signature.sequences else Worker
        if is_pipelined(self.runtime):
            kind = PipelinedWorker
        if isinstance(self.runtime, TokenRuntime):
            kind = TextWorker
        self.worker = kind(
            self.runtime, policy, metrics, self.clock, sizes=sizes, canary=canary, audit=audit, turn=turn,
            run_began=run_began,
        )  # fmt: skip
        for another in further:
            self.worker.add_instance(another)
        for _ in range(frontends):
            self.add_frontend()
        self.turn_device()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for exchange in self.exchanges:
            exchange.close()
        self.kill_device()
        self.loop.close()

    @property
    def exchange(self) -> ArenaExchange:
        """The only frontend's exchange."""
        (exchange,) = self.exchanges
        return exchange

    @property
    def open_lanes(self) -> list[Lane]:
        """The lanes that the worker has not closed."""
        return [lane for lane in self.lanes if lane.doorbell.fileno() >= 0]

    def submit(
        self,
        *first: float,
        frontend: int = 0,
        timeout_ms: float | None = None,
        ticket: PuppetTicket | None = None,
    ) -> PuppetTicket:
        """Submit rows that start with these numbers."""
        if ticket is None:
            deadline_ns = FAR_NS if timeout_ms is None else self.clock() + round(timeout_ms * 1e6)
            ticket = PuppetTicket(deadline_ns)
        self.exchanges[frontend].submit(ticket, rows_of(*first))
        return ticket

    def submit_rows(self, rows: np.ndarray) -> PuppetTicket:
        """Submit rows of the only input."""
        ticket = PuppetTicket()
        self.exchange.submit(ticket, [rows])
        return ticket

    def turn_frontends(self) -> None:
        """One turn of the frontends' event loop: what has arrived is read, what was queued is sent."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def turn_device(self, instance: int = 0) -> int | None:
        """One turn of the device, if it lives: what has arrived is read, at most one batch runs."""
        if not self._device_lives:
            return None
        return self.worker.turn(0, self.worker.instances[instance])

    def settle(self) -> None:
        """Let everybody take turns until nothing moves."""
        moving = True
        while moving:
            before = self._progress()
            self.turn_frontends()
            self.turn_device()
            self.turn_frontends()
            moving = self._progress() != before

    def add_frontend(self) -> None:
        """Join one more frontend, with an arena of its own."""
        signature, capacity = self.runtime.signature, self._capacity
        fd = Arena.create(signature, capacity)
        near, far = socket.socketpair()
        if self._doorbell_bytes is not None:
            for end in (near, far):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._doorbell_bytes)
        index = len(self.exchanges)
        with np.errstate(over="raise"):
            how: Any = {
                "clock_ns": self.clock,
                "on_lost": lambda _: self.lost.append(index),
                "loop": self.loop,
                "by_target": self._by_target,
            }
            arena = Arena(fd, signature, capacity)
            if signature.sequences:
                exchange: ArenaExchange = SequenceExchange(arena, near, SequenceReplicas(1), 0, **how)
            elif self._cache is None:
                exchange = ArenaExchange(arena, near, **how)
            else:
                metrics = self.memory.page(index).model(0)
                exchange = CachedExchange(arena, near, self._cache, metrics, **how)
        self.exchanges.append(exchange)
        # A second mapping of the same memory, as in the device's process.
        self.lanes.append(Lane(Arena(fd, signature, capacity), far))
        self.worker.add_lane(self.lanes[-1])
        os.close(fd)

    def wait_for(self, *tickets: PuppetTicket) -> None:
        """Let the frontends take turns until these are complete; the worker runs on a thread of its own."""
        done = self.loop.create_future()
        open_ = {id(ticket) for ticket in tickets if not ticket.completions}

        def note(ticket: PuppetTicket) -> None:
            open_.discard(id(ticket))
            if not open_:
                done.set_result(None)

        for ticket in tickets:
            ticket.then = partial(note, ticket)
        if open_:
            self.loop.run_until_complete(asyncio.wait_for(done, PATIENCE_S))

    def sweep(self) -> None:
        """Let every frontend look for deadlines that have passed."""
        for exchange in self.exchanges:
            if not exchange.lost:
                exchange.sweep(self.clock())

    def kill_device(self) -> None:
        """Close the device's ends of the doorbells, as the kernel does when the process dies."""
        self._device_lives = False
        self.worker.stop()
        # It closes when all its threads have left.
        for instance in self.worker.instances:
            self.worker.serve(instance)
        for lane in self.lanes:
            lane.close()

    def kill_frontend(self, frontend: int) -> None:
        """Close a frontend's end of the doorbell, as the kernel does when it dies; no request completes."""
        exchange = self.exchanges[frontend]
        exchange.lost = True
        exchange._announcer.close()
        self.loop.remove_reader(exchange.doorbell.socket.fileno())
        self.loop.remove_writer(exchange.doorbell.socket.fileno())
        exchange.doorbell.socket.close()

    def totals(self) -> ModelTotals:
        """The worker's counters."""
        return self.memory.totals().model(0)

    def _progress(self) -> tuple[object, ...]:
        return (
            len(self.runtime.batches),
            self.worker.queue.rows,
            *(exchange.rows_done for exchange in self.exchanges),
            *(exchange.leased_rows for exchange in self.exchanges),
            *(len(exchange.doorbell.unsent) + len(exchange._announcer.queued) for exchange in self.exchanges),
            *(len(lane.unsent) for lane in self.lanes),
        )


def puppet_service(
    name: str = "m",
    memory: MetricMemory | None = None,
    *,
    slot: int = 0,
    version: str = "1",
    access: Access | None = None,
    timeout_ms: int = 1000,
    max_body_bytes: int = 1000,
    max_concurrent_requests: int | None = None,
    max_queue_wait_ms: int = 0,
    urgency: Urgency | None = None,
    by_target: bool = False,
    non_finite: NonFinite = WORDS,
    **more: Any,
) -> Service:
    """A service that is joined to nothing; by default it takes the requests of everybody.

    Args:
        name: Name of the model.
        memory: Where it counts; by default where nobody looks.
        slot: Its slot there.
        version: The model's version.
        access: Who may score.
        timeout_ms: As in `Limits`, like the next three.
        max_body_bytes: The longest body.
        max_concurrent_requests: Most requests in flight; None makes a plain `Service`.
        max_queue_wait_ms: How long others wait.
        urgency: As in `Limits`, like the next one.
        by_target: Whether only requests are taken that are expected to be in time.
        non_finite: As in `ServiceFacts`.
        **more: Further arguments of `Service`, or of `LimitedService` if there is a limit of requests.
    """
    memory = memory or metric_memory()
    limits = Limits(
        timeout_ms * 1_000_000, max_body_bytes, max_concurrent_requests, max_queue_wait_ms, urgency, by_target
    )
    kind = Service if max_concurrent_requests is None else LimitedService
    facts = ServiceFacts(name, version, non_finite=non_finite)
    return kind(facts, access or Access(), memory.page(0).model(slot), limits, **more)


def puppet_pipeline(
    pipeline: Pipeline,
    models: Mapping[str, ServedModel],
    memory: MetricMemory | None = None,
    slot: int = 0,
    *,
    clock_ns: Callable[[], int] = time.monotonic_ns,
) -> PipelineService:
    """A pipeline of services that takes the requests of everybody; joined with them by its `look`."""
    metrics = (memory or metric_memory()).page(0).model(slot)
    facts, limits = ServiceFacts(pipeline.name, "1", "pipeline"), Limits(1_000_000_000, 1000)
    return PipelineService(pipeline, models, facts, Access(), metrics, limits, clock_ns=clock_ns)


def metric_memory() -> MetricMemory:
    """Counters that nobody has counted yet."""
    fd = MetricMemory.create()
    try:
        return MetricMemory(fd)
    finally:
        os.close(fd)
