"""The parts of the bench on a GPU, one after the other, each kept as soon as it is there."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson

from stoker.errors import OperatorError
from stoker.gpu.devices import choose_device
from stoker.gpu.nvml import describe_driver
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.http_caller import allow_many_connections
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import random_rows
from stoker_bench.gpu.ceiling import CeilingOptions, measure_ceiling
from stoker_bench.gpu.faults import FaultOptions, MemoryShortage, kill_run, shortage_run
from stoker_bench.gpu.memory import MemoryOptions, memory_run
from stoker_bench.gpu.models import NETWORKS, ModelMaker
from stoker_bench.gpu.poisson import PoissonOptions, search_poisson
from stoker_bench.gpu.report import (
    GpuReport,
    ceiling_table,
    kill_text,
    memory_text,
    poisson_table,
    served_table,
    shortage_text,
)
from stoker_bench.gpu.server import BODIES, GpuServer, ServingOptions, takes
from stoker_bench.gpu.serving import measure_served
from stoker_bench.progress import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker.servable import Device
    from stoker_bench.gpu.models import GpuModel, Network
    from stoker_bench.gpu.server import Body
    from stoker_bench.gpu.serving import Served
    from stoker_bench.gpu.variants import Precision, WireDtype

__all__ = ["PARTS", "GpuBench", "GpuBenchOptions", "Part"]

Part = Literal["offline", "serve", "poisson", "memory", "faults"]
PARTS: tuple[Part, ...] = ("offline", "serve", "poisson", "memory", "faults")
SETTLE_S = 1.5
"""The load generator's processes take half a second to start."""
USUAL_INPUTS: dict[Network, WireDtype] = {"mlp": "float32", "cnn": "float32", "resnet50": "uint8"}


@dataclass(frozen=True)
class GpuBenchOptions:
    """What `gpu_bench.py` was asked for; see its help texts."""

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
    memory_seconds: float = 30.0
    memory_rows: int = 256
    fault_callers: int = 64
    fault_seconds: float = 3.0
    shortage_mb: int = 640

    def serving(self, gpu_memory_mb: int | None = None) -> ServingOptions:
        """Return how servers are started."""
        return ServingOptions(
            self.device, self.max_batch_rows, self.instances, self.frontends, self.execution, gpu_memory_mb
        )


class GpuBench:
    """One run of the bench.

    Args:
        options: What is measured.
        json: Where the report goes, written anew after each part; None for nowhere.
        command: How the bench was called, for the report.

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
        with self._part("everything"), tempfile.TemporaryDirectory(prefix="stoker-gpu-bench-") as temporary:
            self._folder = Path(temporary)
            self._maker = ModelMaker(self._folder, self._options.mnist, self._options.seed)
            self._run_parts()
        if bounds := self.report.bounds():
            _show("\n".join(["Bounds", *map(str, bounds)]))
        for failure in self.report.failures:
            print(f"NOT MEASURED  {failure}", flush=True)
        print(f"took {self.report.took_s['everything']:,.0f} s", flush=True)
        return self.report

    def _run_parts(self) -> None:
        options, parts = self._options, set(self._options.parts)
        variants = [(network, precision) for network in options.networks for precision in options.precisions]
        if parts & {"offline", "serve", "poisson"}:
            # Arrivals, memory and faults are about the last one.
            for variant in variants if parts & {"offline", "serve"} else variants[-1:]:
                with self._part(" ".join(variant)):
                    self._measure(self._make(*variant), is_last=variant == variants[-1])
        for part, measure in (("memory", self._memory), ("faults", self._faults)):
            if part in parts:
                with self._part(part):
                    measure(self._make(*variants[-1]))

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
        """Keep what a part found, even if it could not be measured to its end."""
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

    def _server(self, model: GpuModel, gpu_memory_mb: int | None = None) -> GpuServer:
        say(f"starting Stoker with {model.name}")
        self._servers += 1
        folder = self._folder / f"server{self._servers}"
        return GpuServer(model, self._options.serving(gpu_memory_mb), folder)

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

    def _memory(self, model: GpuModel) -> None:
        options = self._options
        watched = MemoryOptions(self._device.uuid, options.memory_seconds, options.memory_rows)
        with self._server(model) as server:
            say(f"{model.name}, memory for {options.memory_seconds:,.0f} s")
            run = memory_run(server, watched)
        self.report.memory.append(run)
        _show(memory_text(run))

    def _faults(self, model: GpuModel) -> None:
        options = self._options
        faults = FaultOptions(options.fault_callers, options.fault_seconds, max_rows=options.memory_rows)
        with self._server(model) as server:
            say(f"{model.name}, kill -9 of the device process")
            killed = kill_run(server, faults)
        self.report.kills.append(killed)
        _show(kill_text(killed))
        if self._device.kind == "cpu":
            say("the CPU has no GPU memory that could be too little")
            return
        say(f"{model.name}, out of GPU memory")
        try:
            with self._server(model, options.shortage_mb) as server:
                shortage = shortage_run(server, options.shortage_mb, faults)
        except BenchedServerError as error:
            shortage = MemoryShortage(model.name, options.shortage_mb, faults.max_rows, failure=str(error))
        self.report.shortages.append(shortage)
        _show(shortage_text(shortage))


def _show(text: str) -> None:
    print(f"\n{text}", flush=True)


def _described(device: Device) -> str:
    """Name a device, and a GPU's driver."""
    if device.kind == "cpu":
        return device.description
    return f"{device.description}, driver {describe_driver().version}"
