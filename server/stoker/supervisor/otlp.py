"""Exports spans by OTLP, over HTTP or gRPC, with OpenTelemetry's SDK: the only module that imports the SDK.

Apart from the endpoint, the SDK's environment variables apply: headers, certificates, compression, timeouts,
resource attributes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from stoker import __version__
from stoker.settings.server import OtlpProtocol
from stoker.supervisor.spans import Span

_PATH: Final = "/v1/traces"
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_FAILED: Final = Status(StatusCode.ERROR)
_UNSET: Final = Status(StatusCode.UNSET)
_NAME: Final = "service.name"


class OtlpExporter:
    """Sends spans. To be used on one thread, except for `close`.

    Args:
        endpoint: The receiver's address, with or without the path for traces; None to use the environment's.
    """

    def __init__(self, endpoint: str | None, protocol: OtlpProtocol = "http/protobuf") -> None:
        # The SDK logs each failure; the caller logs them at intervals instead.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._exporter = _over_grpc(endpoint) if protocol == "grpc" else _over_http(endpoint)
        self._resource = _resource()
        self._scope = InstrumentationScope("stoker", __version__)

    def send(self, spans: Sequence[Span]) -> bool:
        """Send spans; returns whether they were accepted.

        Retried for `OTEL_EXPORTER_OTLP_TIMEOUT`, 10 s by default.
        """
        readable = [self._readable(span) for span in spans]
        return bool(self._exporter.export(readable) is SpanExportResult.SUCCESS)

    def close(self) -> None:
        """Abort the transfer."""
        self._exporter.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        # Built without a tracer, which would read the clock, and use samplers and locks in vain.
        return ReadableSpan(
            span.name,
            _context(span.trace_id, span.span_id),
            _context(span.trace_id, span.parent_id, remote=span.of_caller) if span.parent_id else None,
            self._resource,
            span.attributes,
            links=[Link(_context(*link)) for link in span.links],
            kind=SpanKind.SERVER if span.of_caller else SpanKind.INTERNAL,
            status=_FAILED if span.failed else _UNSET,
            start_time=span.begin_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )


def _over_http(endpoint: str | None) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint and endpoint.removesuffix("/").removesuffix(_PATH) + _PATH)


def _over_grpc(endpoint: str | None) -> Any:
    # Imported only where it is used: it brings a runtime of its own, with threads.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    # The scheme decides whether TLS is used.
    return OTLPSpanExporter(endpoint=endpoint)


def _context(trace_id: str, span_id: str, *, remote: bool = False) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=remote, trace_flags=_SAMPLED)


def _resource() -> Resource:
    """The resource attributes: from the environment; the service name is Stoker if none is set."""
    found = Resource.create()
    is_named = not str(found.attributes.get(_NAME, "")).startswith("unknown_service")
    return Resource({"service.version": __version__}).merge(
        found if is_named else found.merge(Resource({_NAME: "stoker"}))
    )
