"""Figures of the bench on a GPU: ceilings, shares of them, tables, bounds, and readings of the driver."""

import argparse
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import orjson
import pytest

from stoker.gpu.facts import GpuReading
from stoker_bench.generators.load_generator import shares_of
from stoker_bench.gpu import ceiling
from stoker_bench.gpu.ceiling import (
    WAYS,
    BatchFigures,
    Ceiling,
    CeilingOptions,
    _Bench,
    _figures,
    _repeat_steps,
    measure_ceiling,
)
from stoker_bench.gpu.gpu_watch import GpuFigures, GpuWatch, gpu_figures
from stoker_bench.gpu.models import GpuModel
from stoker_bench.gpu.poisson import PoissonRun, PoissonSearch
from stoker_bench.gpu.report import GpuReport, ceiling_table, poisson_table, served_table
from stoker_bench.gpu.serving import Served

MODEL = "resnet50 fp16, uint8 input"
SMALL = BatchFigures(1, "bound", 500, 400, 0.1, 2.0, 0.01)
LARGE = BatchFigures(64, "graph", 8000, 6000, 1.0, 8.0, 0.02)
CEILING = Ceiling((SMALL, LARGE), pinned=True, failures=("nhwc: not here",))
GPU = GpuFigures(0.93, 3 << 30, 412.0, ("sw_power_cap",))
SERVED = Served(MODEL, "binary", 150_700, 512, 7600, 60, 90, 0, 61.5, GPU, 3.2, 1.1, 1.4, 4, 8000)
RUN = PoissonRun(7400, 29_600, 0, 6.1, 14.2, overloaded=False, valid=True, cores=1.2)


def test_the_ceiling_is_the_best_batch() -> None:
    """The best batch size and way gives the rate that others are compared with."""
    assert CEILING.best is LARGE
    assert CEILING.rows_per_s == 8000
    table = ceiling_table(MODEL, CEILING)
    assert "64 *" in table
    assert "not measured: nhwc: not here" in table
    assert "host memory pinned" in table


def test_output_of_onnx_runtime_is_no_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lines about missing libraries before the figures are skipped."""
    figures = {"batches": [dataclasses.asdict(SMALL)], "pinned": True, "failures": []}
    commands: list[list[str]] = []

    def output_of(command: list[str], _: float) -> str:
        commands.append(command)
        return f"Failed to load libcurand.so.10: no such file\n{orjson.dumps(figures).decode()}\n"

    monkeypatch.setattr(ceiling, "output_of", output_of)
    model = GpuModel("resnet50", "fp16", "uint8", tmp_path / "model.onnx", "images", (2, 2, 3), "random")
    options = CeilingOptions("cuda:0", (1, 8), 0.1, ("a=b",))
    assert measure_ceiling(model, options) == Ceiling((SMALL,), pinned=True)
    assert " ".join(commands[0]).endswith("--batches 1 8 --provider-option a=b")


def test_a_way_that_onnx_runtime_refuses_does_not_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way is a session of its own, which fails where it cannot be had; plans are made as Stoker makes them."""
    opened: dict[str, Any] = {}

    def open_session(model: Path, _: Any, providers: Any, enable_fallback: int) -> Any:
        opened[way] = providers[0][1]
        assert enable_fallback == 0
        return SimpleNamespace(get_providers=lambda: ["CUDAExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    args = argparse.Namespace(model=Path("model.onnx"), precision="fp16", provider_option=["a=b"])
    for way in WAYS:
        _Bench(args, "cuda", way, args.model)
    common = {"device_id": "0", "use_tf32": "1", "cudnn_conv_algo_search": "HEURISTIC", "a": "b"}
    assert opened["bound"] == common
    assert opened["nhwc graph"] == common | {"prefer_nhwc": "1", "enable_cuda_graph": "1"}


def test_steps_are_timed_apart() -> None:
    """The rate with copies counts all steps of a run; without copies there is computing alone."""
    figures = _figures(10, "bound", [0.5, 0.5], [[0.1, 0.3, 0.2], [0.5, 0.5, 0.5], [0.1, 0.1, 0.1]])
    assert figures.rows_per_s == 20
    assert figures.copied_rows_per_s == pytest.approx(30 / 2.4)
    assert (figures.copy_in_ms, figures.compute_ms, figures.copy_out_ms) == pytest.approx((200, 500, 100))
    assert _figures(10, "bound", [0.5], [[0.5]]).copy_in_ms == 0
    order: list[str] = []
    taken_s = _repeat_steps([lambda: order.append("in"), lambda: order.append("run")], seconds=0)
    assert order == ["in", "run"]
    assert [len(step) for step in taken_s] == [1, 1]


def test_served_table_shows_rates_as_shares_of_the_ceiling() -> None:
    """The share is that of the same run; a generator without a core left is marked."""
    assert SERVED.of_ceiling == 0.95
    table = served_table([SERVED])
    assert "95%" in table
    assert "93%" in table
    assert "!" not in table
    nothing = dataclasses.replace(SERVED, rows_per_s=0, p50_ms=0, p99_ms=0)
    assert served_table([nothing]).splitlines()[4].split()[2:6] == ["0.00", "0%", "–", "–"]
    assert dataclasses.replace(SERVED, ceiling_rows_per_s=None).of_ceiling is None
    busy = dataclasses.replace(SERVED, generator_cores=3.8, gpu=None)
    assert busy.generator_saturated
    # One caller keeps one of the four processes busy.
    assert dataclasses.replace(SERVED, callers=1, generator_cores=0.95).generator_saturated
    assert "had no core left" in served_table([busy])


def test_bounds_are_those_of_the_figures_there_are() -> None:
    """Each bound is met or missed by its figure, and is left out without one."""
    report = GpuReport(
        "cuda:0",
        served=[
            SERVED,
            dataclasses.replace(SERVED, model="mlp fp32, float32 input", rows_per_s=90_000, errors=3),
        ],
        poisson=[PoissonSearch(MODEL, "arrivals", 15, 7400, (RUN,), 8000)],
    )
    assert [(round(bound.measured, 3), bound.met) for bound in report.bounds()] == [
        (0.95, True),
        (0.925, True),
        (90_000, False),
        (3, False),
    ]
    assert GpuReport("cuda:0").bounds() == []
    assert dataclasses.replace(report, device="cpu").bounds() == []


def test_the_report_is_a_json_document_with_its_ratios() -> None:
    """All figures can be read back, ratios included."""
    report = GpuReport("cuda:0", ceilings={MODEL: CEILING}, served=[SERVED])
    document = orjson.loads(orjson.dumps(report.as_json()))
    assert document["ceiling_rows_per_s"] == {MODEL: 8000}
    assert document["served_of_ceiling"] == [0.95]
    assert document["served"][0]["gpu"]["busy_share"] == 0.93
    assert document["machine"]["cores"] >= 1


def test_poisson_table_names_tried_rates_and_the_result() -> None:
    """An overloaded rate is marked; the last line has the highest valid one."""
    failed = dataclasses.replace(RUN, rate_per_s=7900, valid=False, overloaded=True)
    table = poisson_table(PoissonSearch(MODEL, "MLPerf LoadGen 6.0", 15, 7400, (failed, RUN), 8000))
    assert "overloaded" in table
    assert table.endswith("highest rate with p99 ≤ 15 ms: 7,400/s, 92% of the offline rate")


def test_readings_of_the_gpu_are_summarised() -> None:
    """The mean load and power, the most memory, and what slowed it down, idleness aside; unknown is unknown."""
    readings = [
        GpuReading(
            0, "GPU-1", memory_used_bytes=10, utilization_percent=40, power_mw=100_000, throttle_bits=1
        ),
        GpuReading(
            0, "GPU-1", memory_used_bytes=30, utilization_percent=60, power_mw=300_000, throttle_bits=4
        ),
    ]
    assert gpu_figures(readings) == GpuFigures(0.5, 30, 200, ("sw_power_cap",))
    assert gpu_figures([GpuReading(0, "GPU-1")]) == GpuFigures(None, None, None)
    assert gpu_figures([]) is None


def test_only_the_device_under_test_is_watched() -> None:
    """Readings of other GPUs are left out; the CPU has none, and no driver is used."""

    def read() -> list[GpuReading]:
        return [GpuReading(0, "a", utilization_percent=90), GpuReading(1, "b", utilization_percent=10)]

    with GpuWatch("b", read) as watch:
        pass
    assert watch.figures == GpuFigures(0.1, None, None)
    with GpuWatch("", lambda: pytest.fail("the CPU has no driver")) as nothing:
        pass
    assert nothing.figures is None


def test_shares_differ_by_one_at_most() -> None:
    """All connections are given to some process."""
    assert shares_of(10, 4) == [3, 3, 2, 2]
    assert shares_of(1, 3) == [1, 0, 0]
