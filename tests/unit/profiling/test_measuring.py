"""Batches of a model that are timed for a profile."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.pipelined_puppets import PuppetPipeline
from tests.puppets import HandClock, PuppetRuntime

from stoker.deployment import Deployment, Device
from stoker.device.batch_sizes import BatchSizes
from stoker.device.loaded_model import LoadedModel
from stoker.profiling import measuring
from stoker.profiling.measuring import Order, main, measure

CPU = Device("cpu", 0, "cpu")
ORDER = Order("digits", None, None, {}, "auto", target_ms=3, rows=2, seconds=0.0)


def measure_puppet(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    sizes: BatchSizes,
    order: Order = ORDER,
    device: Device = CPU,
    runtime: PuppetRuntime | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the measurements of a puppet of up to eight rows that takes a millisecond a row, and the reports."""
    clock = HandClock()
    runtime = runtime or PuppetRuntime()
    runtime.during = lambda: clock.advance_ms(len(runtime.batches[-1]))
    deployment = Deployment("digits", 7, "onnx", tmp_path / "digits.onnx", tmp_path, 8, 64)
    settings: list[dict[str, Any]] = []
    monkeypatch.setattr(
        measuring, "find_model", lambda *arguments: settings.append(arguments[3]) or deployment
    )
    monkeypatch.setattr(measuring, "enter_model_device", lambda *_: device)
    monkeypatch.setattr(measuring, "load_model", lambda *_: LoadedModel(runtime, 0, 0, 8, sizes, 1, None))
    reports: list[dict[str, Any]] = []
    with ExitStack() as leases:
        found = measure(order, reports.append, leases, clock)
    # With a target, requests that would be late are refused, unless the deployment sets another admission.
    assert settings == [{**order.settings, "target_ms": order.target_ms}]
    assert found["admission"] == deployment.admission
    return found, reports


@pytest.mark.parametrize(
    ("sizes", "timed"), [(BatchSizes(), {1: 1, 2: 2, 4: 4}), (BatchSizes((2, 5, 8)), {2: 2, 5: 5})]
)
def test_batches_are_timed_until_one_is_too_slow(
    sizes: BatchSizes, timed: dict[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each size five times at least, without its first run; larger ones than the first too slow one not at all."""
    found, reports = measure_puppet(monkeypatch, tmp_path, sizes)
    assert found["alone"] == [(rows, ms * 1_000_000) for rows, ms in timed.items() for _ in range(5)]
    assert [(line["rows"], line["ms"]) for line in reports if "rows" in line] == list(timed.items())
    assert (found["reference"], found["beside"], found["forks"]) == ("digits:7", [], False)


def test_the_sizes_that_a_gpu_would_get_by_default_are_chosen_from_the_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All sizes are measured, and the default settings are those of the load with this target."""
    gpu = Device("cuda", 0, "GPU", "GPU-1")
    order = dataclasses.replace(ORDER, target_ms=30)
    found, _ = measure_puppet(monkeypatch, tmp_path, BatchSizes((1, 2, 4, 8)), order, gpu)
    assert sorted({rows for rows, _ in found["alone"]}) == [1, 2, 4, 8]
    # A millisecond for each row: larger batches gain nothing.
    assert (found["max_batch_rows"], found["batch_buckets"]) == (1, [1])
    assert found["buckets_because"] == "batches of 1 do 1,000 rows/s"


def test_batches_of_a_pipeline_are_timed_without_their_copies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Copies run beside the computation of other batches, so only the computation counts."""
    runtime = PuppetPipeline()
    runtime.takes_ns, runtime.copies_ns = (lambda size: size * 1_000_000), (lambda _: 7_000_000)
    gpu = Device("cuda", 0, "GPU", "GPU-1")
    found, _ = measure_puppet(monkeypatch, tmp_path, BatchSizes((1, 2)), device=gpu, runtime=runtime)
    assert found["alone"] == [(size, size * 1_000_000) for size in (1, 2) for _ in range(16)]
    assert not found["forks"]


def test_the_request_has_the_rows_of_the_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is binary, in the Open Inference Protocol, with random numbers that are the same each time."""
    request = measure_puppet(monkeypatch, tmp_path, BatchSizes())[0]["request"]
    assert request == measure_puppet(monkeypatch, tmp_path, BatchSizes())[0]["request"]
    assert (request["path"], request["note"]) == ("/v2/models/digits/infer", "2 random rows, binary")
    body = base64.b64decode(request["body"])
    text_bytes = int(request["headers"]["Inference-Header-Content-Length"])
    (tensor,) = json.loads(body[:text_bytes])["inputs"]
    assert (tensor["name"], tensor["shape"], len(body) - text_bytes) == ("x", [2, 2], 16)


def test_a_failure_is_reported_with_its_exit_code(tmp_path: Path) -> None:
    """The command ends with that code; the measuring process itself ends with 0."""
    read, write = os.pipe()
    order = Order(str(tmp_path / "none.onnx"), str(tmp_path), None, {}, "cpu", 50.0, 1, 0.0)
    with os.fdopen(read) as messages:
        try:
            assert main([order.to_json(), str(write)]) == 0
        finally:
            os.close(write)
        loading, failed = map(json.loads, messages)
    assert loading == {"step": "loading"}
    assert "none.onnx" in failed["error"]
    assert failed["exit_code"] in (2, 3)
