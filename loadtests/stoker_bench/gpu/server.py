"""A Stoker that serves one model from a deployment file, and the requests that it takes."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urljoin

import numpy as np
import yaml
from numpy.typing import NDArray

from stoker_bench.contestants.contest import LoadedServer, check_answers
from stoker_bench.contestants.servers import HOST, Launch, RunningServer, free_port
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import ScoringRequest, binary_open_inference, scoring_request
from stoker_bench.gpu.models import GpuModel, on_the_wire

NAME: Final = "bench"
INFER_PATH: Final = f"/v2/models/{NAME}/infer"
READY_PATH: Final = "/v2/health/ready"
_CHOOSING_S: Final = 20.0
_POLL_S: Final = 0.1
TOLERANCES: Final = {"fp32": 1e-3, "tf32": 2e-2, "fp16": 5e-2}
"""How far an output may be from the CPU's, as a share of the largest of its request."""


@dataclass(frozen=True)
class ServingOptions:
    """How the server is started; None leaves a setting at its default.

    Attributes:
        device: As for `stoker serve`: `cpu`, `cuda:N` or a UUID.
        max_batch_rows: Maximum rows per batch.
        frontends: Number of HTTP processes.
        image_size: Rows and columns to which images are resized; None if the model takes no images.
        memory_mb: The memory within which models are loaded on demand.
        settings: Further settings of the model.
    """

    device: str
    max_batch_rows: int = 256
    frontends: int | None = None
    image_size: tuple[int, int] | None = None
    memory_mb: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def deployment(model: GpuModel, options: ServingOptions, others: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the deployment file's content, with further files that are served alike."""
    settings = {
        "path": str(model.path),
        "name": NAME,
        "max_batch_rows": options.max_batch_rows,
        # A file of PyTorch computes in the precision of its weights.
        "precision": None if model.path.suffix == ".pt2" else model.precision,
        **options.settings,
        "image": options.image_size and {"size": list(options.image_size)},
    }
    document: dict[str, Any] = {
        "device": options.device,
        "frontends": options.frontends,
        "memory_mb": options.memory_mb,
    }
    served = {name: value for name, value in settings.items() if value is not None}
    copies = [
        {**served, "name": f"{NAME}{number}", "path": str(path)} for number, path in enumerate(others, 1)
    ]
    document["models"] = [served, *copies]
    return {name: value for name, value in document.items() if value is not None}


class GpuServer:
    """A context manager around the server's process.

    Args:
        folder: For its workspace, deployment file and log.
        others: Further files that are served alike.
    """

    def __init__(
        self, model: GpuModel, options: ServingOptions, folder: Path, others: Sequence[Path] = ()
    ) -> None:
        self.model = model
        self._chooses_sizes = options.device != "cpu" and "batch_buckets" not in options.settings
        self._key = secrets.token_urlsafe(32)
        folder.mkdir()
        file = folder / "deployment.yaml"
        file.write_text(yaml.safe_dump(deployment(model, options, others)))
        port = free_port()
        command = (sys.executable, "-m", "stoker.cli", "serve", "--config", str(file), "--host", HOST)
        launch = Launch(
            "Stoker",
            (*command, "--port", str(port), "--workspace", str(folder / "workspace")),
            port,
            READY_PATH,
            environment={"STOKER_PRIMARY_KEY": self._key},
            key=self._key,
        )
        self._log = folder / "log"
        self._process = RunningServer(launch, self._log)
        self._launch = launch
        self._speaking = LoadedServer(
            "Stoker",
            urljoin(launch.uri, INFER_PATH),
            OwnGenerator(),
            binary_open_inference(model.input_name, lambda rows: on_the_wire(rows, model)),
            model.row_shape,
            key=self._key,
        )

    def __enter__(self) -> Self:
        self._process.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.stop()

    def request(self, rows: NDArray[np.float32], number: int = 0) -> ScoringRequest:
        """Return the request that scores rows of numbers in 0..1, as binary tensors, by one of its models."""
        request = self._speaking.request(rows)
        return replace(request, path=f"/v2/models/{NAME}{number}/infer") if number else request

    def is_close(self, answer: bytes, wanted: NDArray[np.float32]) -> bool:
        """Whether an answer of binary tensors has a model's outputs."""
        outputs = self._speaking.dialect.decode(answer, len(wanted))
        return bool(np.abs(outputs - wanted).max() <= TOLERANCES[self.model.precision] * np.abs(wanted).max())

    def kill_processes(self, module: str) -> int:
        """Kill the server's processes of a module; returns how many there were."""
        found = [process for process in self._process.tree.processes() if module in process.cmdline()]
        for process in found:
            process.kill()
        return len(found)

    @contextmanager
    def count_cores(self, cores: list[float]) -> Iterator[None]:
        """Append how many cores all of its processes kept busy meanwhile."""
        begun_s, before_s = time.monotonic(), self._process.tree.cpu_s()
        yield
        cores.append((self._process.tree.cpu_s() - before_s) / (time.monotonic() - begun_s))

    def image_request(self, image: bytes) -> ScoringRequest:
        """Return the request that scores a JPEG."""
        return scoring_request(self._launch.uri, image, self._key, {"Content-Type": "image/jpeg"})

    def log(self) -> str:
        """The server's output so far."""
        return self._log.read_text(errors="replace")

    def check(self) -> None:
        """Compare answers with the model's outputs on the CPU; on a GPU also wait for its sizes of batches."""
        tolerance = TOLERANCES[self.model.precision]

        def close(outputs: NDArray[np.float64], wanted: NDArray[np.float32]) -> bool:
            return bool(np.abs(outputs - wanted).max() <= tolerance * np.abs(wanted).max())

        try:
            check_answers(self._speaking, self.model.row_shape, self.model.outputs(), close=close)
        except BenchedServerError as error:
            raise self._process.failed(f"was checked: {error}") from error
        if self._chooses_sizes:
            self._await_sizes()

    def _await_sizes(self) -> None:
        """Wait until it has chosen its sizes of batches, which it does while it serves."""
        give_up_s = time.monotonic() + _CHOOSING_S
        while ": batch_buckets " not in self.log() and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
