"""Comparing versions: a frontend samples requests, and runs them again on other versions.

Requests and answers are read from the arenas, where they stay until their rows are reused. So sampling and shadow
traffic cost requests nothing, whatever their protocol: callers do not wait for it, and nothing is stored for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from stoker.errors import NotReady, Overloaded, StokerError
from stoker.gateway.rows.ticket import Rows, Ticket
from stoker.isolation.sample_files import read_sample
from stoker.settings.files import read_sample_file
from stoker.takeover.comparison import (
    Answer,
    Comparison,
    alike,
    compare,
    json_fields,
    packed_fields,
    script_fields,
)
from stoker.wire.packed import pack
from stoker.wire.script_requests import RequestHead, ScriptRequest

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.service import Service
    from stoker.settings.image_input import ImageInput
    from stoker.tensors import Signature

_MAX_SAMPLES: Final = 100
_MAX_BYTES: Final = 16 << 20
_MAX_SAMPLE_BYTES: Final = 1 << 20
_PERIOD_NS: Final = 250_000_000


class Samples:
    """The last sampled requests of one version: one row or body each, at most four a second."""

    def __init__(self, most: int = _MAX_SAMPLES) -> None:
        """Keep at most this many, of 16 MiB together."""
        self._most = most
        self._kept: deque[Rows | bytes] = deque()
        self._kept_bytes = 0
        self._checked_ns = 0
        self._paused = False

    @property
    def contents(self) -> list[Rows | bytes]:
        """The sampled rows or bodies, the oldest first."""
        return list(self._kept)

    def collect(self, exchanges: Iterable[Exchange], now_ns: int) -> None:
        """Sample a request that was answered since the last call, at most four a second."""
        if self._paused or now_ns - self._checked_ns < _PERIOD_NS:
            return
        since_ns, self._checked_ns = self._checked_ns, now_ns
        for exchange in exchanges:
            for number in exchange.done_since(since_ns, 1):
                self._keep(content_of(exchange, number))
                return

    @contextmanager
    def pause(self, clock_ns: Callable[[], int]) -> Iterator[None]:
        """Pause sampling: the rows in the arena are those of samples that run again."""
        self._paused = True
        try:
            yield
        finally:
            self._paused, self._checked_ns = False, clock_ns()

    def _keep(self, content: Rows | bytes) -> None:
        length = _size_bytes(content)
        if length > _MAX_SAMPLE_BYTES:
            return
        self._kept.append(content)
        self._kept_bytes += length
        while len(self._kept) > self._most or self._kept_bytes > _MAX_BYTES:
            self._kept_bytes -= _size_bytes(self._kept.popleft())


def content_of(exchange: Exchange, number: int) -> Rows | bytes:
    """Return a copy of the content of a queued row."""
    arena = exchange.arena
    if arena.signature.takes != "rows":
        return arena.read_bytes("in", 0, number)
    return [rows[number : number + 1].copy() for rows in arena.inputs]


def _size_bytes(content: Rows | bytes) -> int:
    return len(content) if isinstance(content, bytes) else sum(array.nbytes for array in content)


logger = logging.getLogger(__name__)

_BUDGET_NS: Final = 30_000_000_000


class _Replay(Ticket):
    """A request that is run again, only for its answer."""

    __slots__ = ("answered",)

    def __init__(self, deadline_ns: int) -> None:
        super().__init__(deadline_ns)
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def complete(self) -> None:
        if self.answered.done():
            return
        if self.error is not None:
            self.answered.set_exception(self.error)
            return
        try:
            answer = self._answer()
        except Exception as error:  # noqa: BLE001  # it is raised where the answer is waited for
            self.answered.set_exception(error)
        else:
            self.answered.set_result(answer)

    def _answer(self) -> Answer:
        signature = self.exchange.signature
        if signature.outputs[0].variable:
            return _fields(signature, self.output_texts(0)[0])
        return {
            spec.name: array.copy() for spec, array in zip(signature.outputs, self.outputs(), strict=True)
        }


async def compare_versions(
    old: Service, new: Service, contents: Sequence[Rows | bytes], tolerance: float
) -> Comparison:
    """Run requests through an old and a new version for half a minute; those that the old one fails are left out."""
    comparison = Comparison()
    until_ns = time.monotonic_ns() + _BUDGET_NS
    for content in contents:
        if time.monotonic_ns() >= until_ns:
            break
        try:
            before, old_ns = await answer_of(old, content, until_ns)
        except StokerError:
            continue
        try:
            after, new_ns = await answer_of(new, content, until_ns)
        except StokerError:
            part = compare(before, None, tolerance, old_ns)
        else:
            part = compare(before, after, tolerance, old_ns, new_ns)
        comparison += part
        new.metrics.count_comparison(next(iter(part.results)), flipped=part.flips)
    return comparison


async def sample_of_file(service: Service, path: Path, image: ImageInput | None) -> list[Rows | bytes]:
    """Return the request in a file as a sample of a version; empty if it cannot be read or does not fit."""
    signature = service.signature
    assert signature is not None, "it is attached"
    try:
        return [await asyncio.get_running_loop().run_in_executor(None, _read, signature, path, image)]
    except (StokerError, OSError) as error:
        logger.warning("no sample of %s: %s", service.name, error)
        return []


def _read(signature: Signature, path: Path, image: ImageInput | None) -> Rows | bytes:
    tensors = signature.model_tensors
    if tensors is None:
        return _script_request(signature, read_sample_file(path))
    feeds = read_sample(path, tensors.inputs, image=image)
    if signature.takes == "tensors":
        return pack(feeds)
    return [np.ascontiguousarray(feeds[spec.name][:1]) for spec in signature.inputs]


def _script_request(signature: Signature, body: bytes) -> bytes:
    script = signature.script
    head = None
    if script is not None and (script.wants_head or script.kind != "string"):
        lines = [("content-type", "application/json"), ("content-length", str(len(body)))]
        head = RequestHead("POST", "/score", "", lines, "")
    return ScriptRequest(b"parity", body, 0, head).pack()


def _fields(signature: Signature, row: bytes) -> Answer:
    if signature.takes == "body":
        return script_fields(row)
    return packed_fields(row) if signature.takes == "tensors" else json_fields(row)


def answer_in(exchange: Exchange, number: int) -> tuple[Answer, int]:
    """Return the answer that a row holds, and its time on the device in nanoseconds."""
    arena = exchange.arena
    took_ns = int(arena.finished_ns[number]) - int(arena.started_ns[number])
    specs = arena.signature.outputs
    if specs[0].variable:
        return _fields(arena.signature, arena.read_bytes("out", 0, number)), took_ns
    arrays = (rows[number : number + 1].copy() for rows in arena.outputs)
    return {spec.name: array for spec, array in zip(specs, arrays, strict=True)}, took_ns


async def answer_of(
    service: Service, content: Rows | bytes, until_ns: int | None = None
) -> tuple[Answer, int]:
    """Run a request; return its answer and its time on the device in nanoseconds. `until_ns` shortens the timeout."""
    exchange = service.replicas.only or service.replicas.least_loaded()
    if exchange is None:
        raise NotReady(f"{service.name} is not ready.")
    own_ns = time.monotonic_ns() + service.limits.timeout_ns
    replay = _Replay(own_ns if until_ns is None else min(until_ns, own_ns))
    if isinstance(content, bytes):
        exchange.submit_body(replay, content)
    else:
        exchange.submit(replay, content)
    answer = await replay.answered
    return answer, replay.finished_ns - replay.started_ns


_AT_ONCE: Final = 16


class Shadow:
    """A shadow version: of a hundred rows, `percent` are copied to it; fewer where more than 16 would run at once."""

    def __init__(self, percent: int) -> None:
        """Begin without copies."""
        self.percent = percent
        self._due = 0.0
        self._seen: dict[Exchange, int] = {}
        self._checked_ns = time.monotonic_ns()
        self._under_way: set[asyncio.Task[None]] = set()

    def copy_requests(self, mains: list[Service], shadow: Service, tolerance: float) -> None:
        """Run copies of requests that have been answered since the last call."""
        since_ns, self._checked_ns = self._checked_ns, time.monotonic_ns()
        seen, self._seen = self._seen, {}
        for main in mains:
            if (
                main.signature is None
                or shadow.signature is None
                or not alike(main.signature, shadow.signature)
            ):
                continue
            for exchange in main.exchanges:
                self._seen[exchange] = exchange.rows_done
                done = exchange.rows_done - seen.get(exchange, exchange.rows_done)
                self._due = min(self._due + done * self.percent / 100, _AT_ONCE)
                self._copy(exchange, shadow, since_ns, tolerance)

    def _copy(self, exchange: Exchange, shadow: Service, since_ns: int, tolerance: float) -> None:
        most = min(int(self._due), _AT_ONCE - len(self._under_way))
        if most < 1:
            return
        for number in exchange.done_since(since_ns, most):
            self._due -= 1
            try:
                answer, took_ns = answer_in(exchange, number)
            except StokerError:
                continue
            work = self._run(shadow, content_of(exchange, number), answer, took_ns, tolerance)
            task = asyncio.get_running_loop().create_task(work)
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _run(
        self, shadow: Service, content: Rows | bytes, answer: Answer, took_ns: int, tolerance: float
    ) -> None:
        try:
            other, other_ns = await answer_of(shadow, content)
        except (Overloaded, NotReady):
            return
        except StokerError:
            part = compare(answer, None, tolerance, took_ns)
        except Exception:
            logger.exception("a copy of a request to %s version %s failed", shadow.name, shadow.version)
            return
        else:
            part = compare(answer, other, tolerance, took_ns, other_ns)
        shadow.metrics.count_comparison(next(iter(part.results)), flipped=part.flips)
