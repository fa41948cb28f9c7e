"""The parts of the bench on a GPU, one after the other; each result is saved at once."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson

from stoker.deployment import Device
from stoker.errors import OperatorError
from stoker.gpu.nvml import describe_driver
from stoker.gpu.selection import choose_device
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.closed_loop import allow_many_connections
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import random_rows
from stoker_bench.gpu.ceiling import Ceiling, CeilingOptions, measure_ceiling
from stoker_bench.gpu.faults import (
    FaultOptions,
    KillRun,
    MemoryOptions,
    MemoryRun,
    MemoryShortage,
    kill_run,
    memory_run,
    shortage_run,
)
from stoker_bench.gpu.models import NETWORKS, GpuModel, ModelMaker, Network, Precision, WireDtype
from stoker_bench.gpu.poisson import PoissonOptions, PoissonSearch, search_poisson
from stoker_bench.gpu.server import BODIES, Body, GpuServer, ServingOptions, takes
from stoker_bench.gpu.serving import Served, measure_served
from stoker_bench.reports import UNKNOWN, Bound, aligned, at_least, at_most, describe_machine, figure, say

# What the bench on a GPU found: tables for people, JSON for machines, the bounds that the project sets itself.


MEBI = 1 << 20
SERVED_SHARE = SERVER_SCENARIO_SHARE = 0.9
SMALL_ROWS_PER_S = 100_000
FLAT_BYTES = 16 * MEBI


def percent(share: float | None) -> str:
    """Return a share as a whole percentage."""
    return UNKNOWN if share is None else f"{share:.0%}"


def mebibytes(size: int | None) -> str:
    """Return a size in MiB."""
    return UNKNOWN if size is None else f"{size / MEBI:,.0f}"


def ceiling_table(model: str, ceiling: Ceiling) -> str:
    """Return the table of one model without a server."""
    headings = ["batch", "way", "rows/s", "rows/s copied", "in ms", "compute ms", "out ms"]
    rows = [
        [
            f"{batch.rows}{' *' if batch is ceiling.best else ''}",
            batch.way,
            *map(figure, (batch.rows_per_s, batch.copied_rows_per_s)),
            *(f"{ms:.3f}" for ms in (batch.copy_in_ms, batch.compute_ms, batch.copy_out_ms)),
        ]
        for batch in ceiling.batches
    ]
    pinned = "pinned" if ceiling.pinned else "not pinned"
    notes = [f"* the ceiling; host memory {pinned}", *(f"not measured: {why}" for why in ceiling.failures)]
    return "\n".join([f"{model}: ONNX Runtime alone", "", aligned(headings, rows), *notes])


def served_table(served: Sequence[Served]) -> str:
    """Return the table of one model."""
    headings = ["callers", "rows/s", "of ceiling", "p50 ms", "p99 ms", "errors", "mean batch", "GPU busy"]
    headings += ["GPU W", "frontends", "device", "generator"]
    rows = []
    for case in served:
        gpu = case.gpu
        answered = case.rows_per_s > 0
        latencies = [case.p50_ms if answered else None, case.p99_ms if answered else None]
        cores = [case.frontend_cores, case.device_cores]
        rows.append(
            [
                f"{case.body}, {case.callers}",
                figure(case.rows_per_s),
                percent(case.of_ceiling),
                *map(figure, latencies),
                f"{case.errors:,}",
                figure(case.mean_batch_rows),
                percent(gpu.busy_share if gpu else None),
                figure(gpu.power_w if gpu else None),
                *map(figure, cores),
                f"{case.generator_cores:.2f}{' !' if case.generator_saturated else ''}",
            ]
        )
    processes = served[0].generator_processes
    notes = [f"frontends, device, generator: cores kept busy; the generator has {processes} processes"]
    if any(case.generator_saturated for case in served):
        notes.append("! the generator had no core left, so the server may be faster than this")
    return "\n".join([f"{served[0].model}: through Stoker", "", aligned(headings, rows), *notes])


def poisson_table(search: PoissonSearch) -> str:
    """Return the table of the tried rates, and the result."""
    headings = ["rate/s", "queries", "errors", "p50 ms", "p99 ms", "valid", "generator"]
    rows = [
        [
            figure(run.rate_per_s),
            f"{run.queries:,}",
            f"{run.errors:,}",
            figure(run.p50_ms),
            figure(run.p99_ms),
            "overloaded" if run.overloaded else "yes" if run.valid else "no",
            figure(run.cores),
        ]
        for run in search.runs
    ]
    found = (
        f"highest rate with p99 ≤ {search.limit_ms:g} ms: {figure(search.rate_per_s)}/s, "
        f"{percent(search.of_ceiling)} of the offline rate"
    )
    title = f"{search.model}: Poisson arrivals by {search.generator}"
    return "\n".join([title, "", aligned(headings, rows), found])


def memory_text(run: MemoryRun) -> str:
    """Return how memory went."""
    first, settled, last = run.samples[0], run.settled, run.samples[-1]
    gpu = [sample.gpu_bytes for sample in run.samples if sample.gpu_bytes is not None]
    headings = ["MiB", "start", "after a tenth", "end", "most", "growth"]
    rows = [
        [
            "GPU",
            *map(mebibytes, (first.gpu_bytes, settled.gpu_bytes, last.gpu_bytes)),
            mebibytes(max(gpu) if gpu else None),
            mebibytes(run.growth_bytes(gpu=True)),
        ],
        [
            "host",
            *map(mebibytes, (first.host_bytes, settled.host_bytes, last.host_bytes)),
            mebibytes(max(sample.host_bytes for sample in run.samples)),
            mebibytes(run.growth_bytes(gpu=False)),
        ],
    ]
    title = f"{run.model}: memory of the device processes over {run.seconds:,.0f} s of random sizes"
    return "\n".join(
        [title, "", aligned(headings, rows), f"{run.requests:,} requests answered; {_answers_text(run.told)}"]
    )


def kill_text(run: KillRun) -> str:
    """Return the effects of killing a device process."""
    recovery = f"{run.recovery_s:.2f} s" if run.recovery_s is not None else "none within the time"
    return "\n".join(
        [
            f"{run.model}: device process killed with {run.callers} callers",
            f"  recovery: {recovery}; lost requests: {run.lost:,}; "
            f"longest wait for an answer: {run.longest_wait_s:.2f} s",
            f"  requests/s before: {figure(run.before_per_s)}, after: {figure(run.after_per_s)}",
            f"  until the recovery: {_answers_text(run.told)}",
        ]
    )


def shortage_text(run: MemoryShortage) -> str:
    """Return the effects of too little GPU memory."""
    title = f"{run.model}: {run.memory_mb} MiB of GPU memory, requests of 1 to {run.max_rows} rows"
    if run.failure:
        return f"{title}\n  the server did not start: {run.failure}"
    return "\n".join(
        [
            title,
            f"  {run.requests:,} requests answered; {_answers_text(run.told or {})}",
            f"  restarts: {run.restarts}; mean batch: {figure(run.mean_batch_rows)} rows; "
            f"ready at the end: {'yes' if run.ready else 'NO'}",
        ]
    )


def _answers_text(answers: dict[str, int]) -> str:
    return "callers got " + (", ".join(f"{what}: {count:,}" for what, count in answers.items()) or "nothing")


@dataclass
class GpuReport:
    """Everything that one run found; it grows as the run goes on.

    Attributes:
        device: `cpu` or `cuda:N`.
        description: The device, a GPU with its driver.
        command: The command line of the bench.
    """

    device: str
    description: str = ""
    command: str = ""
    models: dict[str, str] = field(default_factory=dict)
    """Where each model's weights are from."""
    ceilings: dict[str, Ceiling] = field(default_factory=dict)
    served: list[Served] = field(default_factory=list)
    poisson: list[PoissonSearch] = field(default_factory=list)
    memory: list[MemoryRun] = field(default_factory=list)
    kills: list[KillRun] = field(default_factory=list)
    shortages: list[MemoryShortage] = field(default_factory=list)
    took_s: dict[str, float] = field(default_factory=dict)
    """Seconds that each part took."""
    failures: list[str] = field(default_factory=list)
    """Parts that could not be measured, and why."""

    @property
    def headline(self) -> str:
        """The device and versions."""
        machine = describe_machine()
        return (
            f"Stoker {machine.get('stoker', '')} on {self.device} ({self.description}); "
            f"{machine['cores']} cores ({machine['processor']}), which the load generator shares"
        )

    def bounds(self) -> list[Bound]:
        """Return the bounds that this run has figures for; they are those of one H200 with 16 cores."""
        return [] if self.device == "cpu" else list(self._bounds())

    def _bounds(self) -> Iterator[Bound]:
        binary = [case for case in self.served if case.body == "binary"]
        shares = [
            case.of_ceiling
            for case in binary
            if case.model.startswith("resnet50 fp16") and case.of_ceiling is not None
        ]
        yield from at_least(
            "ResNet-50 FP16, binary, over ONNX Runtime alone ≥ 0.9", max(shares, default=None), SERVED_SHARE
        )
        yield from at_least(
            "ResNet-50 FP16, Poisson arrivals over the offline rate ≥ 0.9",
            max((each.of_ceiling for each in self.poisson if "resnet50 fp16" in each.model), default=None),
            SERVER_SCENARIO_SHARE,
        )
        small = [case.rows_per_s for case in binary if case.model.startswith("mlp")]
        yield from at_least(
            "MNIST mlp, rows/s of one-row requests, binary ≥ 100,000",
            max(small, default=None),
            SMALL_ROWS_PER_S,
        )
        if self.served:
            yield from at_most("failed requests = 0", sum(case.errors for case in self.served), 0)
        growths = [run.growth_bytes(gpu=True) for run in self.memory]
        known = [growth / MEBI for growth in growths if growth is not None]
        yield from at_most("growth of GPU memory, MiB ≤ 16", max(known, default=None), FLAT_BYTES / MEBI)

    def as_json(self) -> dict[str, Any]:
        """Return everything as a JSON document."""
        return {
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(),
            **asdict(self),
            "ceiling_rows_per_s": {name: each.rows_per_s for name, each in self.ceilings.items()},
            "served_of_ceiling": [case.of_ceiling for case in self.served],
            "poisson_of_ceiling": [each.of_ceiling for each in self.poisson],
            "bounds": [asdict(bound) for bound in self.bounds()],
        }


Part = Literal["offline", "serve", "poisson", "memory", "faults"]
PARTS: tuple[Part, ...] = ("offline", "serve", "poisson", "memory", "faults")
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
