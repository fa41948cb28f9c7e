"""The parts of the bench on a GPU, one after the other; each result is saved at once."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import orjson

from stoker.deployment import Device
from stoker.errors import OperatorError
from stoker.gpu.nvml import describe_driver
from stoker.gpu.selection import choose_device
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.closed_loop import allow_many_connections
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import random_rows
from stoker_bench.gpu.ceiling import CeilingOptions, measure_ceiling
from stoker_bench.gpu.models import NETWORKS, GpuModel, ModelMaker, Network, Precision, WireDtype
from stoker_bench.gpu.poisson import PoissonOptions, search_poisson
from stoker_bench.gpu.report import GpuReport, ceiling_table, poisson_table, served_table
from stoker_bench.gpu.server import BODIES, Body, GpuServer, ServingOptions, takes
from stoker_bench.gpu.serving import Served, measure_served
from stoker_bench.reports import say

Part = Literal["offline", "serve", "poisson"]
PARTS: tuple[Part, ...] = ("offline", "serve", "poisson")
SETTLE_S = 1.5
"""The load generator's processes take half a second to start."""
USUAL_INPUTS: dict[Network, WireDtype] = {"mlp": "float32", "cnn": "float32", "resnet50": "uint8"}


@dataclass(frozen=True)
class GpuBenchOptions:
    """Options of `gpu_bench.py`; see its help."""

    parts: tuple[Part, ...] = PARTS
    device: str = "cuda:0"
    networks: tuple[Network, ...] = tuple(NETWORKS)
    precisions: tuple[Precision, ...] = ("fp32", "fp16")
    wire_dtype: WireDtype | None = None
    mnist: dict[Network, Path] = field(default_factory=dict)
    seed: int = 7
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    batch_seconds: float = 0.1
    provider_options: tuple[str, ...] = ()
    max_batch_rows: int = 256
    instances: int | None = None
    frontends: int | None = None
    execution: str | None = None
    bodies: tuple[Body, ...] = BODIES
    callers: tuple[int, ...] = (1, 64, 512, 2048)
    seconds: float = 2.0
    processes: int = 4
    poisson: PoissonOptions = field(default_factory=PoissonOptions)

    def serving(self) -> ServingOptions:
        """Return how servers are started."""
        return ServingOptions(
            self.device, self.max_batch_rows, self.instances, self.frontends, self.execution
        )


class GpuBench:
    """One run of the bench.

    Args:
        json: The file of the report, rewritten after each part; None for none.

    Raises:
        DeviceUnavailable: The device is not there.
        InvalidSettings: It is none.
    """

    def __init__(self, options: GpuBenchOptions, json: Path | None = None, command: str = "") -> None:
        self._options = options
        self._json = json
        # Whether ONNX Runtime can use it is found out by the processes that do.
        self._device, _ = choose_device(options.device, (), lambda *_: None)
        self.report = GpuReport(str(self._device), _described(self._device), command)
        self._servers = 0

    def run(self) -> GpuReport:
        """Measure every part; one that cannot be measured is a failure in the report, and the others go on."""
        # The servers inherit the limit, and a frontend may get most of the connections.
        allow_many_connections()
        print(self.report.headline, flush=True)
        with self._part("all parts"), tempfile.TemporaryDirectory(prefix="stoker-gpu-bench-") as temporary:
            self._folder = Path(temporary)
            self._maker = ModelMaker(self._folder, self._options.mnist, self._options.seed)
            self._run_parts()
        if bounds := self.report.bounds():
            _show("\n".join(["Bounds", *map(str, bounds)]))
        for failure in self.report.failures:
            print(f"NOT MEASURED  {failure}", flush=True)
        print(f"took {self.report.took_s['all parts']:,.0f} s", flush=True)
        return self.report

    def _run_parts(self) -> None:
        options, parts = self._options, set(self._options.parts)
        variants = [(network, precision) for network in options.networks for precision in options.precisions]
        # Poisson arrivals are tried with the last one.
        for variant in variants if parts & {"offline", "serve"} else variants[-1:]:
            with self._part(" ".join(variant)):
                self._measure(self._make(*variant), is_last=variant == variants[-1])

    def _make(self, network: Network, precision: Precision) -> GpuModel:
        model = self._maker.make(network, precision, self._options.wire_dtype or USUAL_INPUTS[network])
        self.report.models[model.name] = model.weights
        return model

    def _measure(self, model: GpuModel, *, is_last: bool) -> None:
        with self._part(f"{model.name}, offline"):
            self._ceiling(model)
        wanted: set[Part] = {"serve", "poisson"} if is_last else {"serve"}
        if not wanted & set(self._options.parts):
            return
        with self._part(f"{model.name}, served"), self._server(model) as server:
            if "serve" in self._options.parts:
                for body in self._options.bodies:
                    with self._part(f"{model.name}, {body}"):
                        self._serve(server, body)
            if is_last and "poisson" in self._options.parts:
                self._poisson(server)

    @contextlib.contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """Save the results of a part, even if it failed."""
        began_s = time.monotonic()
        try:
            yield
        except OperatorError as error:
            self.report.failures.append(f"{name}: {error}")
        self.report.took_s[name] = round(time.monotonic() - began_s, 1)
        if self._json is not None:
            half_written = self._json.with_suffix(".part")
            half_written.write_bytes(orjson.dumps(self.report.as_json(), option=orjson.OPT_INDENT_2))
            half_written.replace(self._json)

    def _server(self, model: GpuModel) -> GpuServer:
        say(f"starting Stoker with {model.name}")
        self._servers += 1
        folder = self._folder / f"server{self._servers}"
        return GpuServer(model, self._options.serving(), folder)

    def _ceiling(self, model: GpuModel) -> None:
        options = self._options
        say(f"{model.name}, offline")
        ceiling = measure_ceiling(
            model,
            CeilingOptions(options.device, options.batches, options.batch_seconds, options.provider_options),
        )
        self.report.ceilings[model.name] = ceiling
        _show(ceiling_table(model.name, ceiling))

    def _serve(self, server: GpuServer, body: Body) -> None:
        options, model = self._options, server.model
        if not takes(model, body):
            say(f"{model.name}: numbers of FP16 travel as binary data only")
            return
        say(f"{model.name}, {body}: checking answers")
        server.check(body)
        generator = OwnGenerator(options.processes, SETTLE_S)
        ceiling = self.report.ceilings.get(model.name)
        cases: list[Served] = []
        try:
            for callers in options.callers:
                say(f"{model.name}, {body}, {callers} callers")
                cases.append(
                    measure_served(
                        server,
                        body,
                        callers,
                        seconds=options.seconds,
                        gpu_uuid=self._device.uuid,
                        generator=generator,
                        ceiling_rows_per_s=ceiling.rows_per_s if ceiling else None,
                    )
                )
        finally:
            self.report.served += cases
            if cases:
                _show(served_table(cases))

    def _poisson(self, server: GpuServer) -> None:
        model = server.model
        ceiling = self.report.ceilings.get(model.name)
        if ceiling is None:
            raise BenchedServerError(f"{model.name} has no offline rate, so no rate can be searched for")
        say(f"{model.name}, Poisson arrivals")
        request = server.request(random_rows(1, model.row_shape))
        search = search_poisson(request, model.name, ceiling.rows_per_s, self._options.poisson)
        self.report.poisson.append(search)
        _show(poisson_table(search))


def _show(text: str) -> None:
    print(f"\n{text}", flush=True)


def _described(device: Device) -> str:
    """Name a device, and a GPU's driver."""
    if device.kind == "cpu":
        return device.description
    return f"{device.description}, driver {describe_driver().version}"
