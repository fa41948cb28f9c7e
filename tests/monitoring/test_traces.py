"""Traces as a receiver of OTLP gets them: a small server that reads OpenTelemetry's own messages."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.http.raw_http import rows_body, scoring
from tests.live_server import PRIMARY, LiveServer, run_stoker, wait_until
from tests.tiny_models import write_mlp, write_script
from tritonclient.http import InferenceServerClient

TRACES = [f"{number:032x}" for number in range(1, 9)]
PARENT = "00f067aa0ba902b7"
SCRIPT = """
def init():
    pass

def run(raw_data, request_headers):
    return request_headers["Traceparent"]
"""
TRACING_SCRIPT = """
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

def init():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)

def run(raw_data, request_headers):
    caller = propagate.extract({"traceparent": request_headers.get("Traceparent", "")})
    with trace.get_tracer("score").start_as_current_span("look up", caller):
        return len(raw_data)
"""
VARIABLES = {
    "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
    "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
}


def spans_of(requests: Sequence[ExportTraceServiceRequest]) -> list[Span]:
    """The spans that were sent."""
    groups = [group for one in list(requests) for group in one.resource_spans]
    return [span for group in groups for scope in group.scope_spans for span in scope.spans]


class Receiver:
    """Takes what exporters send, while it is entered."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                receiver.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def spans(self) -> list[Span]:
        """All spans so far."""
        return spans_of(self.requests)

    def of_trace(self, trace_id: str) -> list[Span]:
        """Those of a trace."""
        return [span for span in self.spans if span.trace_id.hex() == trace_id]


class GrpcReceiver(TraceServiceServicer):
    """The same over gRPC, with what callers have to send along."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def Export(  # noqa: N802  # as the service has it
        self, request: ExportTraceServiceRequest, context: Any
    ) -> ExportTraceServiceResponse:
        assert dict(context.invocation_metadata())["x-tenant"] == "tests"
        self.requests.append(request)
        return ExportTraceServiceResponse()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()


def traceparent(trace_id: str, flags: str = "01") -> tuple[str, str]:
    """The header of a caller."""
    return "traceparent", f"00-{trace_id}-{PARENT}-{flags}"


def attributes(known: Any) -> dict[str, Any]:
    """Those of a span or a resource, by name."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in known}


def batch_of(receiver: Receiver, trace_id: str) -> list[Span]:
    """The spans of batches that link to a trace."""
    batches = [span for span in receiver.spans if span.name.startswith("batch ")]
    return [span for span in batches if any(link.trace_id.hex() == trace_id for link in span.links)]


def lasted_ns(span: Span) -> int:
    """How long it took."""
    return int(span.end_time_unix_nano - span.start_time_unix_nano)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[LiveServer]:
    """With a model and a script that sees headers; traces that begin here are not kept."""
    folder = tmp_path_factory.mktemp("traces")
    write_mlp(folder / "mlp.onnx")
    write_script(folder / "script", SCRIPT)
    write_script(folder / "tracing", TRACING_SCRIPT)
    deployment = folder / "deployment.yaml"
    deployment.write_text(
        "models:\n  - path: mlp.onnx\n    max_delay_ms: 100\n  - path: script\n  - path: tracing\n"
    )
    options = ["--config", deployment, "--frontends", "2", "--device", "cpu", "--trace-ratio", "0"]
    options += ["--otlp-endpoint", receiver.endpoint]
    # The library by which the script sends its own spans.
    variables = {**VARIABLES, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
    with LiveServer(folder, *options, env=variables) as server:
        yield server


def test_a_request_has_a_span_with_its_stages_and_its_batch(server: LiveServer, receiver: Receiver) -> None:
    """In its caller's trace; the batch's span names each of its requests, whichever frontend has taken it."""
    path, body = "/api/v1/service/mlp/score", rows_body([0.5] * 784)
    with ExitStack() as opened:
        connections = [opened.enter_context(server.connect()) for _ in TRACES]
        for connection, trace_id in zip(connections, TRACES, strict=True):
            connection.send(scoring(path, PRIMARY, body, (traceparent(trace_id),)))
        assert {connection.answer().status for connection in connections} == {200}

    def batches() -> list[Span]:
        found = [span for span in receiver.spans if span.name == "batch mlp"]
        return found if sum(len(span.links) for span in found) == len(TRACES) else []

    linked = {
        (link.trace_id.hex(), link.span_id): batch
        for batch in wait_until(batches, "the spans of all batches")
        for link in batch.links
    }
    for trace_id in TRACES:
        stages = {span.name: span for span in receiver.of_trace(trace_id)}
        whole = stages.pop("score mlp")
        assert (whole.kind, whole.parent_span_id.hex()) == (Span.SPAN_KIND_SERVER, PARENT)
        assert list(stages) == ["parse", "queue", "compute", "answer"]
        assert {stage.parent_span_id for stage in stages.values()} == {whole.span_id}
        assert sum(map(lasted_ns, stages.values())) == lasted_ns(whole)
        batch = linked[trace_id, whole.span_id]
        assert [(link.trace_id, link.span_id) for link in whole.links] == [(batch.trace_id, batch.span_id)]
        assert attributes(whole.attributes)["http.response.status_code"] == 200
    resource = attributes(receiver.requests[-1].resource_spans[0].resource.attributes)
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("stoker", "test")


def test_spans_of_a_script_are_children_of_its_request(server: LiveServer, receiver: Receiver) -> None:
    """The script sees the span of the request as its caller's; spans that its caller does not keep are left alone."""
    path, kept, dropped = "/api/v1/service/script/score", "a" * 32, "b" * 32
    with server.connect() as connection:
        unkept = connection.ask(scoring(path, PRIMARY, b"1", (traceparent(dropped, "00"),)))
        seen = connection.ask(scoring(path, PRIMARY, b"1", (traceparent(kept),)))
    assert json.loads(unkept.body) == traceparent(dropped, "00")[1]
    wait_until(lambda: receiver.of_trace(kept), "the span of the request")
    whole = next(span for span in receiver.of_trace(kept) if span.name == "score script")
    assert json.loads(seen.body) == f"00-{kept}-{whole.span_id.hex()}-01"
    assert receiver.of_trace(dropped) == []


def test_a_span_that_a_script_makes_is_a_child_of_its_request(server: LiveServer, receiver: Receiver) -> None:
    """OpenTelemetry's SDK makes and sends it in the script's process, in the caller's trace."""
    path, trace_id = "/api/v1/service/tracing/score", "9" * 32
    with server.connect() as connection:
        assert connection.ask(scoring(path, PRIMARY, b"12", (traceparent(trace_id),))).status == 200

    def named() -> dict[str, Span]:
        spans = {span.name: span for span in receiver.of_trace(trace_id)}
        return spans if {"score tracing", "look up"} <= spans.keys() else {}

    spans = wait_until(named, "both spans")
    assert spans["look up"].parent_span_id == spans["score tracing"].span_id
    assert spans["score tracing"].parent_span_id.hex() == PARENT


def test_how_many_are_traced_is_changed_while_the_server_runs(server: LiveServer, receiver: Receiver) -> None:
    """As NVIDIA's client asks for it: all that begin here, three in all, whichever frontends take them."""
    shown = run_stoker("keys", "show", "admin", "--workspace", server.workspace)
    admin, key = ({"authorization": f"Bearer {text}"} for text in (shown.stdout.strip(), PRIMARY))
    triton = InferenceServerClient(f"127.0.0.1:{server.port}")
    assert triton.get_trace_settings(headers=dict(key))["trace_rate"] == "0"
    settings = triton.update_trace_settings(
        "mlp", {"trace_rate": "1", "trace_count": "3"}, headers=dict(admin)
    )
    assert settings == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "1",
        "trace_count": "3",
        "trace_mode": "opentelemetry",
    }

    def begun_here() -> list[Span]:
        return [span for span in receiver.spans if span.name == "score mlp" and not span.parent_span_id]

    path, body = "/api/v1/service/mlp/score", rows_body([0.5] * 784)
    for _ in range(8):
        with server.connect() as connection:
            assert connection.ask(scoring(path, PRIMARY, body)).status == 200
    with server.connect() as connection:
        connection.ask(scoring("/api/v1/service/script/score", PRIMARY, b"1", (traceparent("e" * 32),)))
    wait_until(lambda: batch_of(receiver, "e" * 32), "all that was said before is read")
    assert len(begun_here()) == 3
    assert triton.get_trace_settings("mlp", headers=dict(key))["trace_count"] == "0"
    triton.update_trace_settings("mlp", {"trace_level": "OFF", "trace_count": None}, headers=dict(admin))
    with server.connect() as connection:
        refused = connection.ask(scoring(path, PRIMARY, body, (traceparent("c" * 32),)))
    triton.update_trace_settings("mlp", {"trace_level": None}, headers=dict(admin))
    with server.connect() as connection:
        kept = connection.ask(scoring(path, PRIMARY, body, (traceparent("d" * 32),)))
    assert (refused.status, kept.status) == (200, 200)
    wait_until(lambda: receiver.of_trace("d" * 32), "what callers keep is traced again")
    assert receiver.of_trace("c" * 32) == []
    assert len(begun_here()) == 3


def test_spans_answered_before_the_end_are_sent(tmp_path: Path) -> None:
    """Answered requests are traced before the server ends; without a receiver nothing waits."""
    script = write_script(tmp_path / "script", SCRIPT.replace('request_headers["Traceparent"]', "1"))
    with Receiver() as receiver:
        variables = {**VARIABLES, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        (tmp_path / "one").mkdir()
        with LiveServer(
            tmp_path / "one", script, "--frontends", "1", "--drain-grace-s", "0", env=variables
        ) as server:
            with server.connect() as connection:
                answer = connection.ask(scoring("/score", PRIMARY, b"1"))
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
        (whole,) = [span for span in receiver.spans if span.name == "score script"]
        assert attributes(whole.attributes)["stoker.request_id"] == answer.header("x-request-id")
    (tmp_path / "two").mkdir()
    with LiveServer(
        tmp_path / "two", script, "--frontends", "1", "--drain-grace-s", "0", env=variables
    ) as server:
        with server.connect() as connection:
            assert connection.ask(scoring("/score", PRIMARY, b"1")).status == 200
        wait_until(
            lambda: server.metric("stoker_traced_requests_total", result="dropped") == 1, "it is counted"
        )
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "traces of 1 requests were dropped" in server.output()


@pytest.mark.parametrize("by", ["setting", "variables"])
def test_traces_go_over_grpc_if_configured(tmp_path: Path, by: str) -> None:
    """The address is a setting or a variable, the protocol a variable; headers go along; processes start beside."""
    script = write_script(tmp_path / "script", SCRIPT.replace('request_headers["Traceparent"]', "1"))
    variables = {
        **VARIABLES,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=tests",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    with GrpcReceiver() as receiver:
        options = ["--otlp-endpoint", receiver.endpoint]
        if by == "variables":
            options = []
            variables |= {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        with LiveServer(
            tmp_path, script, "--frontends", "1", "--drain-grace-s", "0", *options, env=variables
        ) as server:
            scoring_once = scoring("/score", PRIMARY, b"1", (traceparent("f" * 32),))
            with server.connect() as connection:
                assert connection.ask(scoring_once).status == 200
            wait_until(lambda: spans_of(receiver.requests), "the first traces")
            # Its successor is started by a process in which gRPC has threads.
            (before,) = server.frontend_pids()
            os.kill(before, signal.SIGKILL)
            wait_until(lambda: before not in server.frontend_pids() and server.ready, "a new frontend")
            with server.connect() as connection:
                assert connection.ask(scoring_once).status == 200
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
        whole = [span for span in spans_of(receiver.requests) if span.name == "score script"]
        assert [span.trace_id.hex() for span in whole] == ["f" * 32] * 2
