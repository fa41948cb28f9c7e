"""The report of the bench on a GPU: tables for people, JSON for machines, and the project's bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from stoker_bench.gpu.ceiling import Ceiling
from stoker_bench.gpu.poisson import PoissonSearch
from stoker_bench.gpu.serving import Served
from stoker_bench.reports import UNKNOWN, Bound, aligned, at_least, at_most, describe_machine, figure

SERVED_SHARE = SERVER_SCENARIO_SHARE = 0.9
SMALL_ROWS_PER_S = 100_000


def percent(share: float | None) -> str:
    """Return a share as a whole percentage."""
    return UNKNOWN if share is None else f"{share:.0%}"


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


@dataclass
class GpuReport:
    """The results of one run so far.

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
