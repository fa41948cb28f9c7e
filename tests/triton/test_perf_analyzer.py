"""Triton's own load generator against a server: `perf_analyzer`, unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live_server import LiveServer, free_port
from tests.tiny_models import write_mlp

TOOLS = Path(sys.prefix) / "triton"
PERF_ANALYZER = TOOLS / "bin" / "perf_analyzer"
WITHOUT_KEYS = "--no-auth"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where a server takes HTTP and gRPC."""
    scratch, grpc_port = tmp_path_factory.mktemp("triton"), free_port()
    model = write_mlp(scratch / "mlp.onnx")
    with LiveServer(
        scratch, model, "--grpc-port", str(grpc_port), WITHOUT_KEYS, "--frontends", "1"
    ) as server:
        yield {"http": f"127.0.0.1:{server.port}", "grpc": f"127.0.0.1:{grpc_port}"}


def analyzed(*words: str) -> str:
    """What it prints."""
    libraries = (
        TOOLS / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/nvidia/cuda_runtime/lib"
    )
    done = subprocess.run(
        [PERF_ANALYZER, "-m", "mlp", *words, "--measurement-interval", "1000", "-s", "999"],
        env={**os.environ, "LD_LIBRARY_PATH": str(libraries)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    printed = done.stdout + done.stderr
    if "libb64" in printed:
        pytest.skip("perf_analyzer needs libb64 (Debian's package libb64-0d)")
    assert done.returncode == 0, printed
    return printed


@pytest.mark.skipif(
    not PERF_ANALYZER.exists(), reason="perf_analyzer is not installed; `make test-triton` does it"
)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    "load",
    [("--concurrency-range", "4"), ("--request-rate-range", "50"), ("--concurrency-range", "2", "-b", "8")],
    ids=["callers", "rate", "batches"],
)
def test_perf_analyzer_measures(address: dict[str, str], protocol: str, load: tuple[str, ...]) -> None:
    """Over both protocols, with callers, at a rate, with several rows: no error, and the times of the server."""
    printed = analyzed("-i", protocol, "-u", address[protocol], *load)
    assert "Inferences/Second vs. Client" in printed
    assert "queue" in printed, printed
    assert "compute infer" in printed
    assert "error" not in printed.lower(), printed
