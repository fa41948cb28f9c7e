"""Traced requests and their recorded facts. The caller chooses them by `traceparent`, or chance does.

On the event loop a traced request is only written into shared memory; the supervisor makes spans of it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from stoker.gateway.http.request_ids import SpanContext
from stoker.gateway.scoring.observers import ObservedCall, Observer
from stoker.metrics.journal import TracedRequest, TraceWriter

if TYPE_CHECKING:
    from stoker.control.frontend_messages import Sampling
    from stoker.errors import StokerError
    from stoker.gateway.http.request_ids import RequestIds
    from stoker.gateway.scoring.call import ServiceBase

_TRACE_BITS: Final = 128
_SPAN_BITS: Final = 64
# OpenTelemetry's sampler TraceIdRatioBased uses the same bits, so all services with one ratio decide alike.
_RATIO_MASK: Final = (1 << 64) - 1


class Tracing(Observer):
    """The tracing of one frontend. Where it is on at all, callers decide for traces that they have begun."""

    observes_steps = True

    def __init__(
        self,
        writer: TraceWriter,
        sampling: Sampling,
        random_bits: Callable[[int], int] = random.getrandbits,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._writer, self._random_bits, self._clock_ns = writer, random_bits, clock_ns
        self.set_sampling(sampling)

    def set_sampling(self, sampling: Sampling) -> None:
        """Use other sampling settings from now on."""
        self._bound = _bound(sampling.ratio)
        self._bounds = {name: _bound(ratio) for name, ratio in sampling.models.items()}

    def accepts(self, call: ObservedCall, ids: RequestIds | None) -> bool:
        """Whether a request is traced; if so, its ids are set to its span."""
        span = self._span(call.service.name, ids)
        if span is None:
            return False
        call.span = span
        call.ids.join(span)
        return True

    def record(self, call: ObservedCall, status: int) -> None:
        """Record the result of a request."""
        span = call.span
        assert span is not None, "traced since it came"
        ran = call.was_run
        self._writer.write(
            TracedRequest(
                span.trace_id,
                span.span_id,
                span.parent_id,
                _text(call.ids),
                call.service.name,
                call.service.version,
                status,
                call.code,
                getattr(call, "rows", 0),
                0 if call.urgency is None else call.urgency.caller.number,
                call.received_ns,
                self._clock_ns(),
                call.enqueued_ns if ran else 0,
                call.started_ns if ran else 0,
                call.finished_ns if ran else 0,
                call.turn_ns if ran else 0,
            )
        )

    def record_refusal(self, service: ServiceBase, ids: RequestIds, error: StokerError) -> None:
        """Record a request that is refused before it is scored, if it is traced, with a span of no duration."""
        span = self._span(service.name, ids)
        if span is not None:
            now_ns = self._clock_ns()
            named = (span.trace_id, span.span_id, span.parent_id, _text(ids), service.name, service.version)
            self._writer.write(TracedRequest(*named, error.status, error.code, 0, 0, now_ns, now_ns))

    def _span(self, model: str, ids: RequestIds | None) -> SpanContext | None:
        """The span of a request; None if it is not traced."""
        bound = self._bounds.get(model, self._bound) if self._bounds else self._bound
        if bound is None:
            return None
        parent = None if ids is None else ids.span
        if parent is None:
            number = self._random_bits(_TRACE_BITS)
            if number & _RATIO_MASK >= bound:
                return None
            trace_id, parent_id = f"{number:032x}", ""
        elif parent.sampled:
            trace_id, parent_id = parent.trace_id, parent.span_id
        else:
            return None
        return SpanContext(trace_id, f"{self._random_bits(_SPAN_BITS):016x}", True, parent_id)


def _bound(ratio: float | None) -> int | None:
    """The bound for the low bits of trace ids that are sampled; None if nothing is traced, whatever callers say."""
    return None if ratio is None else round(ratio * (_RATIO_MASK + 1))


def _text(ids: RequestIds) -> str:
    return ids.request_id.decode("latin-1")
