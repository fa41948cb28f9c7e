"""Where traces go: what the settings and variables say, and what becomes of those that nobody takes."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest
from tests.patience import PATIENCE_S

from stoker.errors import InvalidSettings
from stoker.metrics.journal import TracedRequest, TraceReader, TraceWriter
from stoker.metrics.memory import MetricMemory
from stoker.settings.server import ServerSettings
from stoker.supervisor import trace_sender as module
from stoker.supervisor.spans import Span
from stoker.supervisor.trace_sender import TraceSender, trace_sender

ENDPOINT = "http://127.0.0.1:4318"


@pytest.fixture
def fd() -> Iterator[int]:
    """The memory of the metrics."""
    fd = MetricMemory.create()
    yield fd
    os.close(fd)


class Receiver:
    """Takes spans, or not."""

    def __init__(self) -> None:
        self.takes, self.sent = True, list[int]()
        self.given_up = threading.Event()
        self.waits = False

    def send(self, spans: Sequence[Span]) -> bool:
        if self.waits:
            self.given_up.wait()
        self.sent.append(len(spans))
        return self.takes

    def close(self) -> None:
        self.given_up.set()


def write(fd: int, requests: int) -> None:
    """Say of so many requests that they were answered, each in a batch of its own."""
    writer = TraceWriter(fd, 0)
    for number in range(1, requests + 1):
        times = (number, number + 4, number + 1, number + 2, number + 3)
        writer.write(TracedRequest("1" * 32, "2" * 16, "", "id", "m", "1", 200, "", 1, 0, *times))


def test_spans_go_out_in_portions_and_requests_are_counted(fd: int) -> None:
    """Of each the request and four stages, and in the end a batch."""
    receiver, counts = Receiver(), list[tuple[int, int]]()
    sender = TraceSender(TraceReader(fd), receiver, lambda *count: counts.append(count))
    write(fd, 150)
    sender.send(last=True)
    assert receiver.sent == [512, 150 * 6 - 512]
    assert counts == [(150, 0)]


def test_lost_spans_are_counted_and_warned_of_rarely(fd: int, caplog: pytest.LogCaptureFixture) -> None:
    """The first loss is warned of at once, later ones seldom, so that no log fills a disk."""
    receiver, counts = Receiver(), list[tuple[int, int]]()
    receiver.takes = False
    sender = TraceSender(TraceReader(fd), receiver, lambda *count: counts.append(count))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            write(fd, 2)
            sender.send()
    assert counts == [(0, 2)] * 3
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("traces of 2 requests were dropped")


def test_the_end_sends_the_rest(fd: int, caplog: pytest.LogCaptureFixture) -> None:
    """Without waiting for the next turn of its thread."""
    receiver = Receiver()
    sender = TraceSender(TraceReader(fd), receiver, lambda *_: None)
    sender.start()
    write(fd, 1)
    sender.close(timeout_s=PATIENCE_S)
    assert sum(receiver.sent) == 6
    assert not caplog.messages
    assert not receiver.given_up.is_set()


def test_the_end_waits_for_nobody(fd: int) -> None:
    """Spans that a receiver does not accept in time are given up."""
    receiver = Receiver()
    receiver.waits = True
    write(fd, 1)
    sender = TraceSender(TraceReader(fd), receiver, lambda *_: None)
    sender.start()
    sender.close(timeout_s=0)
    assert receiver.given_up.is_set()


def test_nothing_is_sent_unless_somebody_says_where(fd: int) -> None:
    """Neither a setting nor a variable, or variables that decline."""
    settings = ServerSettings()
    for environ in (
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
    ):
        assert trace_sender(settings, environ, fd, lambda *_: None) is None


def test_protocol_is_that_of_the_variables_or_http(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `otlp_endpoint` set, a protocol that is not supported is replaced by HTTP: traces were asked for."""
    chosen: list[tuple[str | None, str]] = []

    def exporter(endpoint: str | None, protocol: str) -> Receiver:
        chosen.append((endpoint, protocol))
        return Receiver()

    monkeypatch.setitem(sys.modules, "stoker.supervisor.otlp", SimpleNamespace(OtlpExporter=exporter))
    here = dataclasses.replace(ServerSettings(), otlp_endpoint=ENDPOINT)
    by_variable = {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}
    for settings, environ in (
        (here, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}),
        (here, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}),
        (ServerSettings(), {**by_variable, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}),
        (ServerSettings(), by_variable),
    ):
        assert trace_sender(settings, environ, fd, lambda *_: None) is not None
    assert chosen == [
        (ENDPOINT, "grpc"),
        (ENDPOINT, "http/protobuf"),
        (None, "grpc"),
        (None, "http/protobuf"),
    ]


def test_without_the_sdk_the_setting_is_refused_and_a_variable_is_not(
    fd: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator is told what to install; a variable may have been meant for others."""
    monkeypatch.setattr(module, "is_installed", lambda _: False)
    monkeypatch.setattr(module, "how_to_install", "install {}".format)
    with_endpoint = dataclasses.replace(ServerSettings(), otlp_endpoint=ENDPOINT)
    with pytest.raises(InvalidSettings, match=r"^otlp_endpoint needs OpenTelemetry's SDK: install otel$"):
        trace_sender(with_endpoint, {}, fd, lambda *_: None)
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT}
    assert trace_sender(ServerSettings(), variables, fd, lambda *_: None) is None
    assert "no traces are sent" in caplog.text
