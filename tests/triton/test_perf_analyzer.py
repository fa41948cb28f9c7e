"""Triton's own load generator against a server: `perf_analyzer`, unchanged."""

from __future__ import annotations

import csv
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from tests.cuda_sharing.puppet import built_puppet
from tests.live_server import LiveServer, free_port
from tests.patience import PROGRAM_S
from tests.puppets import metric_memory
from tests.tiny_models import write_mlp
from tests.triton.conftest import PERF_ANALYZER, WITHOUT_KEYS, needs_perf_analyzer, printed_by

from stoker.gateway.describing.exposition import render
from stoker.gpu.facts import GpuReading
from stoker.metrics.layout import SUPERVISOR_PAGE
from stoker.metrics.load import LoadMeter


def analyzed(*words: str, model: str = "mlp", before: Path | None = None) -> str:
    """Measure the model, and return the output of perf_analyzer."""
    spread = ("--measurement-interval", "1000", "-s", "999")
    return printed_by(PERF_ANALYZER, "-m", model, *words, *spread, timeout_s=PROGRAM_S, before=before)


@needs_perf_analyzer
@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    "load",
    [
        ("--concurrency-range", "4"),
        ("--request-rate-range", "50"),
        ("--concurrency-range", "2", "-b", "8"),
        ("--concurrency-range", "4", "--shared-memory", "system"),
        ("--concurrency-range", "2", "-b", "8", "--shared-memory", "system"),
    ],
    ids=["callers", "rate", "batches", "shared-memory", "shared-memory-batches"],
)
def test_perf_analyzer_measures(address: dict[str, str], protocol: str, load: tuple[str, ...]) -> None:
    """Over both protocols, in each of its modes and with shared memory: no error, and the times of the server."""
    printed = analyzed("-i", protocol, "-u", address[protocol], *load)
    assert "Inferences/Second vs. Client" in printed
    assert "queue" in printed, printed
    assert "compute infer" in printed
    assert "error" not in printed.lower(), printed


@needs_perf_analyzer
def test_perf_analyzer_measures_one_stream(address: dict[str, str]) -> None:
    """All its requests go on one stream, thousands of them, and it stays open."""
    printed = analyzed("-i", "grpc", "-u", address["grpc"], "--streaming", "--concurrency-range", "4")
    assert "Inferences/Second vs. Client" in printed
    assert "error" not in printed.lower(), printed


@needs_perf_analyzer
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_shares_memory_of_a_gpu(tmp_path: Path, protocol: str) -> None:
    """Its tensors are in memory of the only GPU of a puppet of CUDA, which it and the server take for CUDA."""
    puppet, grpc_port = built_puppet(tmp_path), free_port()
    model = write_mlp(tmp_path / "mlp.onnx")
    options = (WITHOUT_KEYS, "--frontends", "2", "--device", "cpu", "--shared-memory", "on")
    found = {"LD_LIBRARY_PATH": str(puppet)}
    with LiveServer(tmp_path, model, "--grpc-port", str(grpc_port), *options, env=found) as server:
        port = {"http": server.port, "grpc": grpc_port}[protocol]
        load = ("--concurrency-range", "4", "--shared-memory", "cuda")
        printed = analyzed("-i", protocol, "-u", f"127.0.0.1:{port}", *load, before=puppet)
        assert "Inferences/Second vs. Client" in printed
        assert "error" not in printed.lower(), printed
        assert server.metric("stoker_requests_total", model="mlp", status="200") > 0
        assert httpx.get(f"http://127.0.0.1:{server.port}/v2/cudasharedmemory/status").json() == []


def with_metrics(
    address: dict[str, str], protocol: str, url: str, folder: Path
) -> tuple[str, dict[str, str]]:
    """Return the output and the line of the table of a measurement that also reads metrics."""
    table = folder / "table.csv"
    collected = ("--collect-metrics", "--verbose-csv", "--metrics-interval", "100", "-f", str(table))
    printed = analyzed("-i", protocol, "-u", address[protocol], *collected, "--metrics-url", url)
    with table.open() as file:
        (line,) = csv.DictReader(file)
    return printed, line


@needs_perf_analyzer
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_reads_metrics(address: dict[str, str], protocol: str, tmp_path: Path) -> None:
    """Those of the server, which has no GPU, and beside them its requests under Triton's names."""
    url = f"http://{address['http']}/metrics"
    before = triton_s_counters(url)
    printed, line = with_metrics(address, protocol, url, tmp_path)
    assert "Server Prometheus Metrics" in printed
    assert "Avg GPU Utilization" in line
    after = triton_s_counters(url)
    grown = {name: after[name] - before[name] for name in before}
    assert grown["nv_inference_request_success"] == grown["nv_inference_count"] > 0
    assert 0 < grown["nv_inference_exec_count"] <= grown["nv_inference_count"]
    assert grown["nv_inference_request_failure"] == 0
    for stage in ("queue", "compute_input", "compute_infer"):
        assert grown[f"nv_inference_{stage}_duration_us"] > 0, stage


def triton_s_counters(url: str) -> dict[str, float]:
    """All series of each of Triton's counters of models together."""
    sums: dict[str, float] = {}
    for line in httpx.get(url).text.splitlines():
        if line.startswith("nv_inference"):
            name = line.partition("{")[0]
            sums[name] = sums.get(name, 0) + float(line.rpartition(" ")[2])
    return sums


class _Exposition(BaseHTTPRequestHandler):
    """Answers as the metrics page of a server with a GPU."""

    text = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.text)))
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, *_: object) -> None:
        pass


@needs_perf_analyzer
def test_perf_analyzer_reads_metrics_of_gpus(address: dict[str, str], tmp_path: Path) -> None:
    """Its table has the readings of the GPU that the server publishes."""
    memory = metric_memory()
    reading = GpuReading(0, "GPU-a", 80 << 30, 5 << 30, 75 << 30, 37, 412_500, 700_000, 61, 9_876_543, 0)
    memory.page(SUPERVISOR_PAGE).set_gpus([reading])
    members = {"text": render(memory, {}, LoadMeter(memory))}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Exposition", (_Exposition,), members)) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            printed, line = with_metrics(address, "http", url, tmp_path)
        finally:
            server.shutdown()
            serving.join()
    assert "Unable to parse" not in printed, printed
    assert line["Avg GPU Utilization"] == "GPU-a:0.37;"
    assert line["Avg GPU Power Usage"].startswith("GPU-a:412.5")
    assert float(line["Max GPU Memory Usage"].removeprefix("GPU-a:").rstrip(";")) == 5 << 30
    assert float(line["Total GPU Memory"].removeprefix("GPU-a:").rstrip(";")) == 80 << 30
