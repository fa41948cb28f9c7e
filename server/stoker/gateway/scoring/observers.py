"""Notifies the access log and the tracer when the requests of a frontend are answered.

Where requests are observed, their calls are of classes that notify when they are answered; elsewhere nothing is
checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from stoker.gateway.http.request_ids import TRACEPARENT, RequestIds
from stoker.gateway.scoring.call import Call

if TYPE_CHECKING:
    from stoker.control.frontend_messages import Sampling
    from stoker.errors import StokerError
    from stoker.gateway.http.request_ids import SpanContext
    from stoker.gateway.scoring.call import ServiceBase
    from stoker.wire.script_requests import RequestHead

_CLIENT_GONE: Final = 499


class Observer(ABC):
    """Is notified of some requests, on the event loop; if `observes_steps`, also of the steps of pipelines."""

    observes_steps: ClassVar[bool] = False

    @abstractmethod
    def accepts(self, call: ObservedCall, ids: RequestIds | None) -> bool:
        """Whether it wants to be notified of a request with these ids; None for a request without ids."""

    @abstractmethod
    def record(self, call: ObservedCall, status: int) -> None:
        """Record an answered request."""

    @abstractmethod
    def record_refusal(self, service: ServiceBase, ids: RequestIds, error: StokerError) -> None:
        """Record a request that is refused before it is scored, if it wants to be notified of it."""

    def set_sampling(self, sampling: Sampling) -> None:  # noqa: B027  # most have a share of their own
        """Use other sampling settings from now on, if it is the tracer."""

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """Stop; no further notifications come."""


class ObservedCall(Call):
    """A call that notifies observers when it is answered; without slots, so that it can be mixed into other classes.

    Attributes:
        span: Its span, if it is traced.
    """

    observers: ClassVar[tuple[Observer, ...]]
    code = ""
    span: SpanContext | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        notified: tuple[Observer, ...] = ()
        # Faster than a comprehension; this runs once per request.
        for observer in self.observers:
            if observer.accepts(self, self._ids):
                notified += (observer,)
        self._notified = notified
        if notified and self._ids is None:
            # Otherwise the answer would get ids that the observers do not know.
            self._ids = RequestIds()

    @property
    def was_run(self) -> bool:
        """Whether its times on a device are known, and belong to its answer."""
        return not self.code and hasattr(self, "finished_ns")

    def refuse(self, error: StokerError) -> None:
        """Answer with an error."""
        self.code = error.code
        super().refuse(error)

    def abandon(self) -> None:
        """The caller has gone: rows that have not started will not run."""
        if self._notified and self.is_awaited:
            self._notify(_CLIENT_GONE)
        super().abandon()

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Answer the caller, then notify the observers."""
        notifies = self._notified and self.is_awaited
        super().answer(status, lines, body)
        if notifies:
            self._notify(status)

    def _notify(self, status: int) -> None:
        for observer in self._notified:
            observer.record(self, status)


class Observers:
    """The observers of one frontend; at least one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._call_types: dict[type[Call], type[Call]] = {}

    def observe(self, service: ServiceBase) -> None:
        """Observe the requests to a service; to be called again when another replica is attached."""
        usual = service.call_type
        if issubclass(usual, ObservedCall):
            return
        if usual not in self._call_types:
            namespace = {"observers": self._observers}
            self._call_types[usual] = type(f"_Observed{usual.__name__}", (ObservedCall, usual), namespace)
        service.call_type = self._call_types[usual]

    def record_refusal(self, service: ServiceBase, ids: RequestIds, error: StokerError) -> None:
        """Notify of a request to a service that is refused before it is scored."""
        for observer in self._observers:
            observer.record_refusal(service, ids, error)

    def set_sampling(self, sampling: Sampling) -> None:
        """Use other sampling settings of traces from now on."""
        for observer in self._observers:
            observer.set_sampling(sampling)

    def close(self) -> None:
        """Close the observers."""
        for observer in self._observers:
            observer.close()


def head_with_span(call: Call, head: RequestHead) -> RequestHead:
    """Return the head that a script sees: with the request's span as the parent of the script's spans."""
    if not isinstance(call, ObservedCall) or call.span is None:
        return head
    name, traceparent = TRACEPARENT.decode(), call.span.traceparent.decode()
    others = [pair for pair in head.headers if pair[0].lower() != name]
    return msgspec.structs.replace(head, headers=[*others, (name, traceparent)])
