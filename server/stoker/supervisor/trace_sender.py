"""Sends the spans of traced requests to a receiver of OpenTelemetry's protocol, beside the supervisor's loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from stoker.errors import InvalidSettings
from stoker.metrics.journal import TraceReader
from stoker.settings.server import OtlpProtocol, ServerSettings, otlp_protocol_of
from stoker.supervisor.spans import Span, SpanMaker
from stoker.supervisor.trace_settings import TraceSettings
from stoker.system.extras import how_to_install, is_installed

logger = logging.getLogger(__name__)

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PACKAGES: Final[dict[OtlpProtocol, str]] = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
}
_PERIOD_S: Final = 0.25
_SENT_SPANS: Final = 512
"""The size of a batch of spans, as in the SDK."""
_QUIET_PERIODS: Final = 120
"""Dropped spans are logged at once, and then at most once in this many periods."""


class Exporter(Protocol):
    """Sends spans."""

    def send(self, spans: Sequence[Span]) -> bool:
        """Send spans; returns whether they were accepted."""

    def close(self) -> None:
        """Abort the transfer."""


def trace_sender(
    settings: ServerSettings, environ: Mapping[str, str], metrics_fd: int, count: Callable[[int, int], None]
) -> TraceSender | None:
    """Return the sender of a server's traces; None if traces are off.

    The setting of the endpoint takes precedence. Without it, OpenTelemetry's variables are used if the SDK is
    installed: they may have been meant for other programs.
    """
    named = next((name for name in _ENDPOINTS if environ.get(name)), None)
    if settings.otlp_endpoint is None and (named is None or _declined(environ)):
        return None
    protocol = _choose_protocol(otlp_protocol_of(environ))
    if not is_installed(_PACKAGES[protocol]):
        needs = f"OpenTelemetry's SDK: {how_to_install('otel')}"
        if settings.otlp_endpoint is not None:
            raise InvalidSettings(f"otlp_endpoint needs {needs}")
        logger.warning("%s is set, but no traces are sent; that needs %s", named, needs)
        return None
    from stoker.supervisor.otlp import OtlpExporter

    exporter = OtlpExporter(settings.otlp_endpoint, protocol)
    return TraceSender(TraceReader(metrics_fd), exporter, count, TraceSettings(settings.trace_ratio))


def _declined(environ: Mapping[str, str]) -> bool:
    """Whether the variables themselves switch traces off, or ask for a protocol that is not supported."""
    if (
        environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environ.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return True
    if (protocol := otlp_protocol_of(environ)) not in _PACKAGES:
        logger.warning(
            "no traces are sent: the protocols of OTLP are here %s, not %s", " and ".join(_PACKAGES), protocol
        )
        return True
    return False


def _choose_protocol(named: str) -> OtlpProtocol:
    """The protocol of the variables, if it is supported.

    Otherwise the default, because the setting asks for traces.
    """
    return "grpc" if named == "grpc" else "http/protobuf"


class TraceSender:
    """Sends the traced requests that frontends report, on a thread of its own.

    While the receiver is slow, reports stay in the rings of the frontends, which overwrite them in the end.

    Args:
        count: Told of requests whose spans were sent, and of those whose spans were not.
        settings: The choice of requests; by default all that frontends report.
    """

    def __init__(
        self,
        reader: TraceReader,
        exporter: Exporter,
        count: Callable[[int, int], None],
        settings: TraceSettings | None = None,
        maker: SpanMaker | None = None,
    ) -> None:
        self.settings = settings or TraceSettings()
        self._reader, self._exporter, self._count = reader, exporter, count
        self._maker = maker or SpanMaker()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._unlogged, self._quiet_periods = 0, _QUIET_PERIODS

    def start(self) -> None:
        """Send from now on."""
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Send the remaining requests, and end; those that are not accepted within `timeout_s` are lost."""
        self._closing.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("the last traces are dropped: their receiver does not accept them in time")
            self._exporter.close()

    def _run(self) -> None:
        while not self._closing.wait(_PERIOD_S):
            self.send()
        self.send(last=True)

    def send(self, *, last: bool = False) -> None:
        """Send the requests since the last time; with the last ones also all batches."""
        requests, dropped = self._reader.read()
        spans, sent = self._maker.make(self.settings.admit(requests), last=last), 0
        for start in range(0, len(spans), _SENT_SPANS):
            portion = spans[start : start + _SENT_SPANS]
            # Each request has one such span.
            count = sum(span.of_caller for span in portion)
            if self._exporter.send(portion):
                sent += count
            else:
                dropped += count
        self._count(sent, dropped)
        self._log_dropped(dropped)

    def _log_dropped(self, dropped: int) -> None:
        """Log now and then how many requests were left out."""
        self._unlogged += dropped
        self._quiet_periods += 1
        if self._unlogged and self._quiet_periods > _QUIET_PERIODS:
            logger.warning(
                "traces of %d requests were dropped: their receiver did not accept them", self._unlogged
            )
            self._unlogged = self._quiet_periods = 0
