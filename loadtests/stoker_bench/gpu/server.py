"""A Stoker that serves one model from a deployment file, and the requests that it takes."""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import urljoin

import numpy as np
import yaml
from numpy.typing import NDArray

from stoker.settings.image_input import Decoding
from stoker_bench.contestants.contest import LoadedServer, batch_totals, check_answers
from stoker_bench.contestants.servers import HOST, Launch, RunningServer, free_port, get
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import (
    DATA_LISTS,
    Dialect,
    ScoringRequest,
    binary_open_inference,
    json_lists,
    scoring_request,
)
from stoker_bench.gpu.models import GpuModel, as_sent

Body = Literal["binary", "json"]
BODIES: Final = ("binary", "json")
NAME: Final = "bench"
INFER_PATH: Final = f"/v2/models/{NAME}/infer"
METRICS_PATH: Final = "/metrics"
READY_PATH: Final = "/v2/health/ready"
FRONTEND_COMMAND: Final = "stoker.gateway"
DEVICE_COMMAND: Final = "stoker.device"
HTTP_OK: Final = 200
TOLERANCES: Final = {"fp32": 1e-3, "tf32": 2e-2, "fp16": 5e-2}
"""How far an output may be from the CPU's, as a share of the largest of its request."""


@dataclass(frozen=True)
class ServingOptions:
    """How the server is started; None leaves a setting at its default.

    Attributes:
        device: As for `stoker serve`: `cpu`, `cuda:N` or a UUID.
        max_batch_rows: Maximum rows per batch.
        instances: Batches that the device process runs at the same time.
        frontends: Number of HTTP processes.
        execution: How batches run on a GPU: `copied`, `bound`, `graph` or `auto`.
        image_size: Rows and columns to which images are resized; None if the model takes no images.
        decoding: How JPEGs are decoded.
    """

    device: str
    max_batch_rows: int = 256
    instances: int | None = None
    frontends: int | None = None
    execution: str | None = None
    image_size: tuple[int, int] | None = None
    decoding: Decoding = "precise"


def deployment(model: GpuModel, options: ServingOptions) -> dict[str, Any]:
    """Return the deployment file's content."""
    settings = {
        "path": str(model.path),
        "name": NAME,
        "max_batch_rows": options.max_batch_rows,
        "instances": options.instances,
        "execution": options.execution,
        # A file of PyTorch computes in the precision of its weights.
        "precision": None if model.path.suffix == ".pt2" else model.precision,
        "image": options.image_size and {"size": list(options.image_size), "decoding": options.decoding},
    }
    document: dict[str, Any] = {"device": options.device, "frontends": options.frontends}
    document["models"] = [{name: value for name, value in settings.items() if value is not None}]
    return {name: value for name, value in document.items() if value is not None}


def takes(model: GpuModel, body: Body) -> bool:
    """Return whether a model can be scored with such bodies: FP16 travels as binary data only."""
    return body == "binary" or model.wire_dtype != "float16"


class GpuServer:
    """A context manager around the server's process.

    Args:
        folder: For its workspace, deployment file and log.
    """

    def __init__(self, model: GpuModel, options: ServingOptions, folder: Path) -> None:
        self.model = model
        self._key = secrets.token_urlsafe(32)
        folder.mkdir()
        file = folder / "deployment.yaml"
        file.write_text(yaml.safe_dump(deployment(model, options)))
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
        self._dialects = _dialects(model)

    def __enter__(self) -> Self:
        self._process.__enter__()
        self.tree = self._process.tree
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.stop()

    def request(self, rows: NDArray[np.float32], body: Body = "binary") -> ScoringRequest:
        """Return the request that scores rows of numbers in 0..1."""
        return self._speaking(body).request(rows)

    def image_request(self, image: bytes) -> ScoringRequest:
        """Return the request that scores a JPEG."""
        return scoring_request(self._launch.uri, image, self._key, {"Content-Type": "image/jpeg"})

    def log(self) -> str:
        """The server's output so far."""
        return self._log.read_text(errors="replace")

    def check(self, body: Body) -> None:
        """Compare answers with the model's outputs on the CPU."""
        tolerance = TOLERANCES[self.model.precision]

        def close(outputs: NDArray[np.float64], wanted: NDArray[np.float32]) -> bool:
            return bool(np.abs(outputs - wanted).max() <= tolerance * np.abs(wanted).max())

        server = self._speaking(body)
        try:
            check_answers(server, self.model.row_shape, self.model.outputs(), close=close)
        except BenchedServerError as error:
            raise self._process.failed(f"was checked: {error}") from error

    def batches(self) -> tuple[float, float] | None:
        """Return the rows and the count of all batches so far; None while the server does not report them."""
        status, page = get(HOST, self._launch.port, METRICS_PATH)
        return batch_totals(page) if status == HTTP_OK else None

    def frontends(self) -> list[int]:
        """Return the process ids of the HTTP processes."""
        return self.tree.named(FRONTEND_COMMAND)

    def devices(self) -> list[int]:
        """Return the process ids of the device processes."""
        return self.tree.named(DEVICE_COMMAND)

    def _speaking(self, body: Body) -> LoadedServer:
        uri = self._launch.uri if body == "json" else urljoin(self._launch.uri, INFER_PATH)
        return LoadedServer(
            f"Stoker, {body}",
            uri,
            OwnGenerator(),
            self._dialects[body],
            self.model.row_shape,
            key=self._key,
        )


def _dialects(model: GpuModel) -> dict[Body, Dialect]:
    convert = partial(as_sent, wire_dtype=model.wire_dtype)
    integers = model.wire_dtype in ("uint8", "int64")
    return {
        "binary": binary_open_inference(model.input_name, convert),
        "json": json_lists(convert) if integers else DATA_LISTS,
    }
