"""Decoding one long body in the reader process: what it is told, and what it returns.

The reader runs the same dialect as the frontend would, with a stand-in for the exchange that keeps what is
submitted. So both come to the same result, with the same error messages.
"""

from __future__ import annotations

import mmap
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from stoker.errors import NotReady, StokerError
from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.rows.urgency import Urgency
from stoker.gateway.scoring.call import Call, Dialect
from stoker.gateway.scoring.loaded_dialect import loaded_dialect
from stoker.gateway.scoring.parcels import Parcel

if TYPE_CHECKING:
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.rows.ticket import BodyT, Decode, Rows, Ticket
    from stoker.gateway.scoring.call import Scorer
    from stoker.settings.choices import NonFinite
    from stoker.tensors import SequenceStep, Signature
    from stoker.wire.script_requests import RequestHead

__all__ = ["Found", "LongBody", "read_long_body", "submit_found", "task_for"]


@dataclass(frozen=True, slots=True)
class LongBody:
    """The task of the reader, beside the body.

    Attributes:
        name, version, signature, non_finite: Of the model.
        dialect: The request's dialect; None for the model's.
        head: Method, query and headers, where the dialect needs them.
        request_id: The request's id.
        received_ns, deadline_ns, urgency: Of the call.
    """

    name: str
    version: str
    signature: Signature
    non_finite: NonFinite
    dialect: Dialect | None
    head: RequestHead | None
    request_id: bytes
    received_ns: int
    deadline_ns: int
    urgency: Urgency | None


@dataclass(slots=True)
class Found:
    """The decoded content of a body; its bytes are in the shared memory that comes with it.

    Attributes:
        deadline_ns: The deadline, if the body sets one.
        urgency: The urgency, if the body sets one.
        sequence: The sequence, if the body names one.
        arrays: Per input dtype and shape of its rows, in the order in which they lie in the memory; None if the
            memory is a row of bytes.
        empty: Whether there are no rows.
        write: As `Call.write`, without the request's arrays; None if the dialect sets none.
        error: The error, if the request is refused.
        fault: The traceback of an unexpected exception.
    """

    deadline_ns: int
    urgency: Urgency | None = None
    sequence: SequenceStep | None = None
    arrays: list[tuple[str, tuple[int, ...]]] | None = None
    empty: bool = False
    write: Callable[[Mapping[str, np.ndarray]], tuple[bytes, bytes]] | None = None
    error: StokerError | None = None
    fault: str = ""


def submit_found(call: Call, exchange: Exchange, read: Parcel | Rows | BaseException) -> None:
    """Submit decoded content as the dialect would have done; answers with an error if that fails.

    Args:
        call: The request.
        exchange: Where to submit it.
        read: The reader's parcel, whose content is a `Found`; or the rows alone; or an error.
    """
    try:
        _submit(call, exchange, read)
    except StokerError as error:
        call.refuse(error)
    except Exception as error:  # noqa: BLE001  # nobody else would ever answer this request
        call.refuse_for_fault(error)


def _submit(call: Call, exchange: Exchange, read: Parcel | Rows | BaseException) -> None:
    if isinstance(read, BaseException):
        raise read
    if isinstance(read, Parcel):
        _submit_parcel(call, exchange, read)
    else:
        exchange.submit(call, read)


def _submit_parcel(call: Call, exchange: Exchange, parcel: Parcel) -> None:
    found: Found = parcel.content
    if found.error is not None:
        raise found.error
    if found.fault:
        raise RuntimeError(f"a long body could not be read:\n{found.fault}")
    call.deadline_ns, call.urgency = found.deadline_ns, found.urgency
    if found.write is not None:
        call.write = found.write
    if found.sequence is not None:
        call.sequence = found.sequence
    if found.empty:
        call.complete_empty(exchange)
        return
    # Arrays that refer to the mapping keep it alive.
    memory = mmap.mmap(parcel.memory_fd, 0, prot=mmap.PROT_READ)
    if found.arrays is None:
        exchange.submit_body(call, memoryview(memory)[: parcel.size_bytes])
    else:
        exchange.submit(call, _arrays_in(memory, found.arrays))


def _arrays_in(memory: mmap.mmap, described: list[tuple[str, tuple[int, ...]]]) -> list[np.ndarray]:
    arrays, start = [], 0
    for dtype, shape in described:
        array: np.ndarray = np.ndarray(shape, dtype, memory, start)
        arrays.append(array)
        start += array.nbytes
    return arrays


def task_for(call: Call, head: RequestHead | None) -> LongBody:
    """The reader's task for a request to a model that is loaded."""
    service = call.service
    assert service.signature is not None, "it is loaded"
    return LongBody(
        service.name,
        service.version,
        service.signature,
        service.non_finite,
        call.dialect,
        head,
        call.ids.request_id,
        call.received_ns,
        call.deadline_ns,
        call.urgency,
    )


def read_long_body(task: LongBody, body: bytes) -> tuple[Found, list[memoryview]]:
    """Decode a body; returns the result, and its bytes one after the other."""
    model = _Model(task.name, task.version, task.signature, task.non_finite)
    call = _Call(
        cast("Scorer", model), RequestIds(task.request_id), lambda *_: None, task.received_ns, task.dialect
    )
    call.deadline_ns, call.urgency = task.deadline_ns, task.urgency
    dialect = task.dialect or loaded_dialect(task.name, task.signature, task.non_finite)
    kept = _Kept(task.signature)
    found = Found(task.deadline_ns)
    try:
        dialect.submit(call, cast("Exchange", kept), body, task.head)
    except StokerError as error:
        found.error = error
        return found, []
    except Exception:  # noqa: BLE001  # told to the frontend, which has the request's id
        found.fault = traceback.format_exc()
        return found, []
    found.deadline_ns, found.urgency = call.deadline_ns, call.urgency
    found.write, found.sequence = getattr(call, "write", None), getattr(call, "sequence", None)
    found.empty = call.is_empty
    if kept.rows is None:
        return found, [memoryview(kept.body)]
    rows = [np.ascontiguousarray(array) for array in kept.rows]
    found.arrays = [(array.dtype.str, array.shape) for array in rows]
    return found, [array.reshape(-1).view(np.uint8).data for array in rows]


@dataclass
class _Model:
    """Takes the place of the service in the reader."""

    name: str
    version: str
    signature: Signature
    non_finite: NonFinite
    codecs: dict[type, Any] = field(default_factory=dict)
    timeout_ns: int = 0
    urgency: Urgency | None = None

    def not_ready(self) -> NotReady:
        return NotReady(f"{self.name} is not ready.", retry_after_s=1)


class _Kept:
    """Takes the place of the exchange in the reader: keeps what is submitted."""

    def __init__(self, signature: Signature) -> None:
        self.arena = SimpleNamespace(signature=signature)
        self.rows: Rows | None = None
        self.body = b""

    def submit(self, ticket: Ticket, rows: Rows) -> None:
        del ticket
        self.rows = rows

    def submit_decoded(self, ticket: Ticket, body: BodyT, decode: Decode[BodyT]) -> None:
        self.submit(ticket, decode(body, None))

    def submit_body(self, ticket: Ticket, body: bytes) -> None:
        del ticket
        self.body = body


class _Call(Call):
    """Takes the place of the call in the reader: gives no answer."""

    __slots__ = ("is_empty",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.is_empty = False

    def complete_empty(self, exchange: Exchange) -> None:
        """Record that there are no rows."""
        del exchange
        self.is_empty = True
