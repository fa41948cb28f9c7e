"""A step of a pipeline's request: a call to its model like any other, whose inputs and answer are arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.rows.urgency import USUAL
from stoker.gateway.scoring.call import Call, Dialect
from stoker.gateway.scoring.tensor_dialect import named_outputs, submit_tensors
from stoker.gateway.scoring.watched_calls import WatchedCall

if TYPE_CHECKING:
    import numpy as np

    from stoker.errors import StokerError
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.service import Service
    from stoker.wire.envelope import RequestHead

__all__ = ["StepCall", "begin_step"]


class StepCall(Call):
    """One step of a request; without slots, so that it can be mixed into the call class of its model's service.

    It is counted, logged, limited and repeated like any other request to its model. It claims no quota, for the
    request to the pipeline has claimed its rows already.

    Attributes:
        whole: The pipeline's request.
        given: The outputs of the model by name. Valid during the callback, and longer unless `lent`.
        lent: Whether the outputs are views of rows that are reused afterwards.
        failure: Why it failed, or None.
    """

    whole: Call
    given: Mapping[str, np.ndarray]
    lent = False
    failure: StokerError | None = None

    @property
    def target_ns(self) -> int:
        """The target of the whole request, or the one that the model sets for all of its own requests."""
        return self.whole.target_ns or super().target_ns

    def refuse(self, error: StokerError) -> None:
        """Pass an error on to the whole request."""
        self.failure = error
        super().refuse(error)

    def hand_on(self, outputs: Mapping[str, np.ndarray], *, lent: bool) -> None:
        """Pass the outputs on to the whole request."""
        self.given, self.lent = outputs, lent
        self.answer_bare()


class _StepDialect(Dialect):
    """A dialect whose requests and answers are arrays: nothing is decoded or encoded."""

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the arrays of a step."""
        del body, head
        submit_tensors(call, exchange, call.asked)

    def complete(self, call: Call) -> None:
        """Pass the outputs on."""
        assert isinstance(call, StepCall), "nobody else speaks this"
        lent = call.exchange.arena.signature.takes == "rows" and call.rows == 1 and call.sliced is None
        call.hand_on(named_outputs(call), lent=lent)

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Pass each call its row of the only output."""
        name = calls[0].exchange.arena.signature.outputs[0].name
        for index, call in enumerate(calls):
            assert isinstance(call, StepCall), "nobody else speaks this"
            try:
                call.hand_on({name: rows[index : index + 1]}, lent=False)
            except Exception as error:  # noqa: BLE001  # must not reach the other requests
                call.refuse_for_fault(error)

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return the status alone: the whole request gets the error itself."""
        return error.status, b"", b""


_ARRAYS: Final = _StepDialect()
_KINDS: dict[tuple[type[Call], bool], type[StepCall]] = {}


def begin_step(
    service: Service, whole: Call, inputs: Mapping[str, np.ndarray], tell: Callable[[StepCall], None]
) -> StepCall:
    """Make the call of a step to its model's service; it is then submitted by `Service.submit`.

    Args:
        service: The model.
        whole: The pipeline's request, whose caller, tier and deadline the step has.
        inputs: By the names of the model's inputs.
        tell: Called once when the step has its outputs or has failed.
    """
    span = whole.span if isinstance(whole, WatchedCall) else None
    kind = _kind_of(service.call_type, traced=span is not None)
    parent = span or whole.ids.span
    ids = RequestIds(whole.ids.request_id, traceparent=b"" if parent is None else parent.traceparent)
    call = kind(service, ids, lambda *_: tell(call), time.monotonic_ns(), _ARRAYS)
    call.whole, call.asked = whole, inputs
    if whole.urgency is not None:
        # The whole request has claimed its rows.
        lasts_ns = whole.urgency.lasts_ns or (call.urgency or USUAL).lasts_ns
        call.urgency = whole.urgency._replace(lasts_ns=lasts_ns, quota=None)
    if hasattr(whole, "sequence"):
        call.sequence = whole.sequence
    call.deadline_ns = min(call.deadline_ns, whole.deadline_ns)
    return call


def _kind_of(usual: type[Call], *, traced: bool) -> type[StepCall]:
    """The class of step calls for a service whose other calls are of this class."""
    kind = _KINDS.get((usual, traced))
    if kind is None:
        watchers = usual.watchers if issubclass(usual, WatchedCall) and traced else ()
        seen = {"watchers": tuple(watcher for watcher in watchers if watcher.sees_steps)}
        kind = _KINDS[usual, traced] = type(f"_Step{usual.__name__}", (StepCall, usual), seen)
    return kind
