"""Replays: requests that a frontend runs again, on one version or two, to compare the answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from stoker.errors import NotReady, StokerError
from stoker.gateway.rows.ticket import Rows, Ticket
from stoker.samples.sample_files import read_sample
from stoker.settings.files import read_sample_file
from stoker.takeover.comparison import Answer, Comparison, compare, json_fields, script_fields
from stoker.wire.packed import pack, unpack
from stoker.wire.script_requests import RequestHead, ScriptRequest

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.service import Service
    from stoker.settings.image_input import ImageInput
    from stoker.tensors import Signature

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
    return unpack(row) if signature.takes == "tensors" else json_fields(row)


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
