"""Peers that serve the same model on the same device: a hand-written Starlette service, and mosec."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from stoker.gpu.selection import choose_device
from stoker_bench.contestants.peers import SERVICES
from stoker_bench.contestants.servers import HOST, Launch, RunningServer, free_port, post
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.scoring_request import ScoringRequest, random_rows
from stoker_bench.gpu.models import GpuModel, on_the_wire

_OK: Final = 200
_TOLERANCE: Final = 5e-2


@dataclass(frozen=True)
class GpuPeer:
    """A service in `loadtests/peers` that takes the bytes of a row, and answers those of its outputs.

    Attributes:
        script: Its file, or with `uvicorn` the module's.
        needs: The package that has to be installed.
    """

    name: str
    script: str
    needs: str

    @contextmanager
    def start(self, model: GpuModel, device: str, folder: Path) -> Iterator[ScoringRequest]:
        """Start it, check its answer, and give the request of a row.

        Raises:
            BenchedServerError: It is not installed, does not start, or answers something else.
        """
        if importlib.util.find_spec(self.needs) is None:
            raise BenchedServerError(f"{self.needs} is not installed")
        port, service = free_port(), SERVICES / self.script
        command: tuple[str, ...] = (sys.executable, str(service), "--port", str(port))
        launch = Launch(self.name, command, port, "", "/inference", environment=_environment(model, device))
        with RunningServer(launch, folder / f"{self.needs}.log") as server:
            rows = random_rows(1, model.row_shape)
            body = on_the_wire(rows, model).tobytes()
            headers = {"Content-Type": "application/octet-stream"}
            status, answer = post(HOST, port, "/inference", body, headers)
            wanted = model.outputs()(rows)
            if status != _OK or not np.allclose(
                np.frombuffer(answer, np.float32), wanted[0], atol=_TOLERANCE * np.abs(wanted).max()
            ):
                raise server.failed(f"answered {status} with other outputs than the model has on the CPU")
            yield ScoringRequest(HOST, port, "/inference", body, headers)


def _environment(model: GpuModel, device: str) -> dict[str, str]:
    chosen, _ = choose_device(device, (), lambda *_: None)
    environment = {
        "MODEL_PATH": str(model.path),
        "ROW_DTYPE": model.wire_dtype,
        "ROW_SHAPE": ",".join(map(str, model.row_shape)),
        "PROVIDER": "CPUExecutionProvider" if chosen.kind == "cpu" else "CUDAExecutionProvider",
    }
    if chosen.uuid:
        environment["CUDA_VISIBLE_DEVICES"] = chosen.uuid
    return environment | {"PATH": os.environ.get("PATH", "")}


PEERS: Final = (
    GpuPeer("hand-written (Starlette, uvicorn)", "gpu_handwritten.py", "starlette"),
    GpuPeer("mosec, batches of up to 64", "gpu_mosec.py", "mosec"),
)
"""Peers that need no virtual environment of their own."""
