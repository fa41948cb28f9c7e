"""Loads one way of an imported model as a device process would, compares its answers, and times its batches.

Run as `python -m stoker.importing.measuring`, so that a crash costs nothing but the way.

See decision 57.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stoker.deployment import Deployment, Device
from stoker.device.bucket_choice import gains_by_growing
from stoker.device.first_batches import time_batches
from stoker.device.loaded_model import LoadedModel
from stoker.device.loading import load
from stoker.errors import LoadFailed
from stoker.gpu.confinement import enter_device
from stoker.importing.reference import Case, Feeds, read_cases, record, run, write_cases
from stoker.isolation.model_errors import in_one_line
from stoker.runtimes.base import JoiningRuntime, OutOfMemory, powers_of_two
from stoker.settings.choices import Acceleration
from stoker.settings.server import ServerSettings
from stoker.system.child_orders import answer_order
from stoker.system.resources import usable_cores
from stoker.system.wording import format_count
from stoker.takeover.comparison import Comparison, compare

_RUNS: Final = (3, 50)
_TIMED_S: Final = 0.3


def do(order: dict[str, Any]) -> dict[str, Any]:
    """Do what an order of `stoker.models.way_measuring.Bench` asks for."""
    reference = Path(order["reference"])
    if order.get("record"):
        loaded, deployment = _load(order, Acceleration(precision="fp32"))
        cases = record(loaded, deployment)
        write_cases(reference, cases)
        loose = [case.kind for case in cases if not case.strict]
        return {"signature": loaded.signature.to_json(), "remarks": loose}
    loaded, _ = _load(order, Acceleration(provider=order["provider"]))
    cases = read_cases(reference)
    found = compare_cases(loaded, cases, order["tolerance"])
    isolation = loaded.signature.isolation
    times_ms = _times_ms(loaded, cases[0].feeds)
    best = max(times_ms, key=lambda rows: rows / times_ms[rows])
    return {
        **found,
        "batched": isolation is not None and isolation.batched,
        "isolation": "" if isolation is None else str(isolation),
        "one_row_ms": times_ms[min(times_ms)],
        "best_rows": best,
        "best_ms": times_ms[best],
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "load_s": loaded.load_s + loaded.warm_up_s,
    }


def _load(order: Mapping[str, Any], acceleration: Acceleration) -> tuple[LoadedModel, Deployment]:
    settings = ServerSettings()
    deployment = Deployment(
        name=order["name"],
        version=1,
        framework=order["framework"],
        path=Path(order["path"]),
        model_dir=Path(order["model_dir"]),
        max_batch_rows=order["max_batch_rows"],
        max_body_bytes=settings.max_body_bytes,
        threads=usable_cores(),
        acceleration=acceleration,
        # Of compiled code, which an import has made.
        allow_pickle=order.get("allow_pickle", False),
    )
    device: Device
    runtime = "tensorrt" if acceleration.provider == "tensorrt" else deployment.framework
    device, _ = enter_device(order["device"], {runtime})
    if runtime == "tensorrt" and device.kind == "cpu":
        raise LoadFailed("TensorRT needs a GPU")
    return load(deployment, device), deployment


def compare_cases(loaded: LoadedModel, cases: Sequence[Case], tolerance: float) -> dict[str, Any]:
    """Compare a way's answers with those of the original; returns fields of `stoker.models.ways.WayResult`."""
    strict = Comparison()
    failures, remarks = [], []
    for case in cases:
        try:
            given: Feeds | None = run(loaded, case.feeds)
        except OutOfMemory:
            raise
        except Exception as error:  # noqa: BLE001  # what it refuses, the original has answered
            given = None
            failures.append(f"it fails on inputs of the kind {case.kind!r}: {in_one_line(error)}")
        found = compare(case.answer, given, tolerance)
        if case.strict:
            strict += found
        elif not found.agrees:
            remarks.append(case.kind)
    difference = max((one.relative for one in strict.fields.values()), default=0.0)
    flips = sum(one.flipped for one in strict.fields.values())
    differs = ""
    if strict.results.get("failed"):
        differs = failures[0]
    elif strict.results.get("not_finite"):
        differs = "it gives NaN or infinities, and the original does not"
    elif strict.requests and not strict.agrees:
        differs = "its answers differ" + f" by up to {difference:.2g} of the largest number" * bool(
            difference
        )
    elif flips:
        differs = f"{format_count(flips, 'class', 'classes')} differ"
    return {
        "differs": differs,
        "difference": difference,
        "flips": flips,
        "compared": strict.requests,
        "remarks": remarks,
    }


def _times_ms(loaded: LoadedModel, feeds: Feeds) -> dict[int, float]:
    """Times of batches that grow while larger ones do more rows a second; of one request if rows are free.

    The least of several: whatever else the machine does only adds to it.
    """
    if isinstance(loaded.runtime, JoiningRuntime):
        runtime = loaded.runtime
        times: list[float] = []
        until_s = time.perf_counter() + _TIMED_S
        while len(times) < _RUNS[0] or (len(times) < _RUNS[1] and time.perf_counter() < until_s):
            begun_s = time.perf_counter()
            runtime.run_tensors(feeds)
            times.append(time.perf_counter() - begun_s)
        return {1: 1e3 * min(times)}
    times_ns: dict[int, float] = {}
    for size in loaded.sizes.buckets or powers_of_two(loaded.max_batch_rows):
        first_ns = time_batches(loaded.runtime, size, feeds, 2)[-1]
        runs = min(_RUNS[1], max(_RUNS[0], int(_TIMED_S * 1e9 / max(first_ns, 1))))
        times_ns[size] = max(1, min(time_batches(loaded.runtime, size, feeds, runs)))
        if not gains_by_growing(times_ns):
            break
    return {size: elapsed_ns / 1e6 for size, elapsed_ns in times_ns.items()}


if __name__ == "__main__":
    sys.exit(answer_order(do, "it cannot be measured"))
