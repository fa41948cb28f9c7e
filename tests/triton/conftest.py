"""Fixtures of the tests of Triton's tools: their paths, and a server without keys, which the tools cannot send."""

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
LIBRARIES = (
    TOOLS / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/nvidia/cuda_runtime/lib"
)

needs_perf_analyzer = pytest.mark.skipif(
    not PERF_ANALYZER.exists(), reason="perf_analyzer is not installed; `make test-triton` does it"
)


def printed_by(
    *command: str | Path, folder: Path | None = None, timeout_s: float, before: Path | None = None
) -> str:
    """Run perf_analyzer, or a tool that calls it, and return its output; skip the test if a library is missing.

    Libraries in the folder `before` take precedence.
    """
    folders = [LIBRARIES] if before is None else [before, LIBRARIES]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    printed = done.stdout + done.stderr
    if "libb64" in printed:
        pytest.skip("perf_analyzer needs libb64 (Debian's package libb64-0d)")
    assert done.returncode == 0, printed
    return printed


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where a server takes HTTP and gRPC."""
    scratch, grpc_port = tmp_path_factory.mktemp("triton"), free_port()
    model = write_mlp(scratch / "mlp.onnx")
    with LiveServer(
        scratch,
        model,
        "--grpc-port",
        str(grpc_port),
        WITHOUT_KEYS,
        "--frontends",
        "2",
        "--device",
        "cpu",
        "--shared-memory",
        "on",
    ) as server:
        yield {"http": f"127.0.0.1:{server.port}", "grpc": f"127.0.0.1:{grpc_port}"}
