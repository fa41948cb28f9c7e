"""A step of a pipeline's request: a call to its model like any other, whose inputs and answer are arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from stoker.errors import StokerError
from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.rows.urgency import DEFAULT_URGENCY
from stoker.gateway.scoring.call import Call, Dialect
from stoker.gateway.scoring.dialects import named_outputs, submit_tensors
from stoker.gateway.scoring.observers import ObservedCall

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.service import Service
    from stoker.wire.script_requests import RequestHead


class StepCall(Call):
    """One step of a request; without slots, so that it can be mixed into the call class of its model's service.

    It is counted, logged, limited and repeated like any other request to its model. It claims no quota, for the
    request to the pipeline has claimed its rows already.

    Attributes:
        outputs_by_name: The outputs of the model by name. Valid during the callback, and longer unless `are_views`.
        are_views: Whether the outputs are views of rows that are reused afterwards.
    """

    whole: Call
    outputs_by_name: Mapping[str, np.ndarray]
    are_views = False
    failure: StokerError | None = None

    @property
    def target_ns(self) -> int:
        """The target of the whole request, or the one that the model sets for all of its own requests."""
        return self.whole.target_ns or super().target_ns

    def refuse(self, error: StokerError) -> None:
        """Pass an error on to the whole request."""
        self.failure = error
        super().refuse(error)

    def deliver(self, outputs: Mapping[str, np.ndarray], *, are_views: bool) -> None:
        """Pass the outputs on to the whole request."""
        self.outputs_by_name, self.are_views = outputs, are_views
        self.answer_bare()


class _StepDialect(Dialect):
    """A dialect whose requests and answers are arrays: nothing is decoded or encoded."""

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the arrays of a step."""
        del body, head
        submit_tensors(call, exchange, call.context)

    def complete(self, call: Call) -> None:
        """Pass the outputs on."""
        assert isinstance(call, StepCall), "only steps have this dialect"
        are_views = call.exchange.signature.takes == "rows" and call.rows == 1 and call.sliced is None
        call.deliver(named_outputs(call), are_views=are_views)

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Pass each call its row of the only output."""
        name = calls[0].exchange.signature.outputs[0].name
        for index, call in enumerate(calls):
            assert isinstance(call, StepCall), "only steps have this dialect"
            try:
                call.deliver({name: rows[index : index + 1]}, are_views=False)
            except Exception as error:  # noqa: BLE001  # must not reach the other requests
                call.refuse_for_fault(error)

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return the status alone: the whole request gets the error itself."""
        return error.status, b"", b""


_ARRAYS: Final = _StepDialect()
_KINDS: dict[tuple[type[Call], bool], type[StepCall]] = {}


def create_step_call(
    service: Service, whole: Call, inputs: Mapping[str, np.ndarray], on_end: Callable[[StepCall], None]
) -> StepCall:
    """Make the call of a step, for `Service.submit`, with caller, tier and deadline of the whole request."""
    span = whole.span if isinstance(whole, ObservedCall) else None
    kind = _kind_of(service.call_type, traced=span is not None)
    parent = span or whole.ids.span
    ids = RequestIds(whole.ids.request_id, traceparent=b"" if parent is None else parent.traceparent)
    call = kind(service, ids, lambda *_: on_end(call), time.monotonic_ns(), _ARRAYS)
    call.whole, call.context = whole, inputs
    if whole.urgency is not None:
        # The whole request has claimed its rows from the caller's quota, each step claims its own from its group's.
        own = call.urgency or DEFAULT_URGENCY
        lasts_ns = whole.urgency.lasts_ns or own.lasts_ns
        call.urgency = whole.urgency._replace(lasts_ns=lasts_ns, quota=None, shared=own.shared)
    if hasattr(whole, "sequence"):
        call.sequence = whole.sequence
    call.deadline_ns = min(call.deadline_ns, whole.deadline_ns)
    return call


def _kind_of(usual: type[Call], *, traced: bool) -> type[StepCall]:
    """The class of step calls for a service whose other calls are of this class."""
    kind = _KINDS.get((usual, traced))
    if kind is None:
        observers = usual.observers if issubclass(usual, ObservedCall) and traced else ()
        seen = {"observers": tuple(observer for observer in observers if observer.observes_steps)}
        kind = _KINDS[usual, traced] = type(f"_Step{usual.__name__}", (StepCall, usual), seen)
    return kind
