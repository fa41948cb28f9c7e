"""Loads one way of an imported model as a device process would, compares its answers, and times its batches.

Run as `python -m stoker.importing.measuring`, so that a crash costs nothing but the way.

See decision 57.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.deployment import Deployment, Device
from stoker.device.bucket_choice import gains_by_growing
from stoker.device.first_batches import time_batches
from stoker.device.loaded_model import LoadedModel
from stoker.device.loading import load
from stoker.errors import LoadFailed
from stoker.gpu.confinement import enter_device
from stoker.isolation.companions import NON_FINITE, Companions
from stoker.isolation.model_errors import in_one_line
from stoker.runtimes.base import JoiningRuntime, OutOfMemory, powers_of_two
from stoker.samples.sample import find_sample_feeds
from stoker.settings.choices import Acceleration
from stoker.settings.server import ServerSettings
from stoker.system.child_orders import answer_order
from stoker.system.wording import format_count
from stoker.takeover.comparison import Comparison, compare
from stoker.tensors import TensorInfo, all_finite, number_kind
from stoker.wire.packed import pack, unpack

Feeds = Mapping[str, np.ndarray]

_ROWS: Final = 3
_FREE_SIZES: Final = (8, 32, 64, 1, 128, 224)
_LADDER: Final = (3, 10, 100, 1000, 30_000, 10_000_000)
"""Integers that inputs are tried with, up to the first that the model refuses."""
_HALVINGS: Final = 6
_MAY_DIFFER: Final = ("huge", *NON_FINITE)
"""Kinds of inputs on which frameworks overflow, or spread NaN, in ways of their own."""
_MOST_BYTES: Final = 256 << 20
_RUNS: Final = (3, 50)
_TIMED_S: Final = 0.3
_SEED: Final = 20261127


@dataclass(frozen=True, slots=True)
class Case:
    """A request, with the original's answer.

    Attributes:
        kind: What its inputs are.
        strict: Whether each way has to give this answer.
    """

    kind: str
    strict: bool
    feeds: Feeds
    answer: Feeds


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
        threads=settings.device_threads,
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


# What the original is asked.


def record(loaded: LoadedModel, deployment: Deployment) -> list[Case]:
    """Ask the original: its sample, random rows, a batch of them, and the extremes that it accepts.

    Raises:
        LoadFailed: It answers nothing that was made up.
    """
    tensors = loaded.signature.model_tensors
    if tensors is None:
        raise LoadFailed(f"{deployment.name} has no tensors for inputs")
    base = _accepted_rows(loaded, deployment, tensors.inputs)
    cases = [_asked(loaded, "random", feeds) for feeds in base]
    free = all(info.shape[:1] == (-1,) for info in tensors.inputs)
    if free:
        cases.append(_asked(loaded, "batch", _joined(base)))
    sample = find_sample_feeds(deployment, tensors.inputs)
    if sample is not None:
        cases.append(_asked(loaded, "sample", sample.feeds))
    companions = Companions(base)
    # A mask of zeros, or an index that is the same everywhere, is no request, and answers to it are anybody's.
    strict = all(info.kind == "f" for info in tensors.inputs)
    for kind in companions.kinds():
        if kind in ("other", "same"):
            continue
        case = None
        for feeds in companions.grades(kind):
            if (given := _try(loaded, feeds)) is None:
                break
            case = _case(kind, feeds, given, strict=strict)
        if case is not None:
            cases.append(case)
    return list(_within_memory(cases))


def _accepted_rows(loaded: LoadedModel, deployment: Deployment, inputs: Sequence[TensorInfo]) -> list[Feeds]:
    """Three requests of one row that the model answers: random ones, else of its sample."""
    refusal = ""
    for size in _FREE_SIZES:
        base = [_random(inputs, size, seed, {}) for seed in range(_ROWS)]
        try:
            for feeds in base:
                run(loaded, feeds)
        except Exception as error:  # noqa: BLE001  # a model may raise anything for made-up rows
            refusal = refusal or in_one_line(error)
            if not any(-1 in info.shape[1:] for info in inputs):
                break
            continue
        most = _ranges(loaded, inputs, base[0])
        wide = [_random(inputs, size, seed, most) for seed in range(_ROWS)]
        return wide if all(_try(loaded, feeds) is not None for feeds in wide) else base
    sample = find_sample_feeds(deployment, inputs)
    if sample is None:
        raise LoadFailed(
            f"{deployment.name} refuses random inputs ({refusal}): give a request that it answers by --sample FILE"
        )
    rows = sample.rows or 1
    if not all(info.shape[:1] == (-1,) for info in inputs):
        return [sample.feeds] * _ROWS
    return [
        {name: array[place % rows : place % rows + 1] for name, array in sample.feeds.items()}
        for place in range(_ROWS)
    ]


def _ranges(loaded: LoadedModel, inputs: Sequence[TensorInfo], base: Feeds) -> dict[str, int]:
    """Up to which number each index may go: what is refused beyond it. Others may be masks."""
    most = {}
    for info in inputs:
        if number_kind(np.dtype(info.dtype if info.dtype != "string" else object)) not in "iu":
            continue
        accepted = 1

        def accepts(number: int, name: str = info.name) -> bool:
            return _try(loaded, {**base, name: np.full_like(base[name], number)}) is not None

        for number in (each for each in _LADDER if each <= np.iinfo(info.dtype).max):
            if accepts(number):
                accepted = number
                continue
            refused = number
            for _ in range(_HALVINGS):
                middle = (accepted + refused) // 2
                accepted, refused = (middle, refused) if accepts(middle) else (accepted, middle)
            most[info.name] = accepted
            break
    return most


def _random(inputs: Sequence[TensorInfo], free: int, seed: int, most: Mapping[str, int]) -> Feeds:
    """Make a request of one row: normal numbers, integers up to 1 or `most`, words."""
    random = np.random.default_rng((_SEED, seed))
    feeds: dict[str, np.ndarray] = {}
    for info in inputs:
        first = info.shape[:1] and (1 if info.shape[0] < 0 else info.shape[0],)
        shape = (*first, *(free if size < 0 else size for size in info.shape[1:]))
        if info.dtype == "string":
            feeds[info.name] = np.full(shape, f"word{seed} of text".encode(), object)
        elif info.kind == "f":
            feeds[info.name] = random.standard_normal(shape).astype(info.dtype)
        else:
            feeds[info.name] = random.integers(0, most.get(info.name, 1) + 1, shape).astype(info.dtype)
    return feeds


def _joined(requests: Sequence[Feeds]) -> Feeds:
    return {name: np.concatenate([one[name] for one in requests]) for name in requests[0]}


def _asked(loaded: LoadedModel, kind: str, feeds: Feeds) -> Case:
    try:
        return _case(kind, feeds, run(loaded, feeds))
    except OutOfMemory:
        raise
    except Exception as error:
        raise LoadFailed(
            f"the original fails on inputs of the kind {kind!r}: {in_one_line(error)}"
        ) from error


def _case(kind: str, feeds: Feeds, answer: Feeds, *, strict: bool = True) -> Case:
    finite = all(map(all_finite, answer.values()))
    return Case(kind, strict and finite and kind not in _MAY_DIFFER, feeds, answer)


def _try(loaded: LoadedModel, feeds: Feeds) -> Feeds | None:
    try:
        return run(loaded, feeds)
    except Exception:  # noqa: BLE001  # a model may raise anything for made-up rows
        return None


def _within_memory(cases: Sequence[Case]) -> Iterator[Case]:
    """The first cases, as many as a file of some size holds; at least one."""
    total_bytes = 0
    for case in cases:
        total_bytes += sum(array.nbytes for array in (*case.feeds.values(), *case.answer.values()))
        if total_bytes > _MOST_BYTES and case is not cases[0]:
            return
        yield case


def write_cases(path: Path, cases: Sequence[Case]) -> None:
    """Write requests and answers to a `.npz` file without pickles."""
    arrays = {}
    for number, case in enumerate(cases):
        key = f"{number}/{case.kind}/{'strict' if case.strict else 'may differ'}"
        arrays[f"{key}/feeds"] = np.frombuffer(pack(dict(case.feeds)), np.uint8)
        arrays[f"{key}/answer"] = np.frombuffer(pack(dict(case.answer)), np.uint8)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # numpy's types take `allow_pickle` for a name


def read_cases(path: Path) -> list[Case]:
    """Read what `write_cases` has written."""
    cases = []
    with np.load(path, allow_pickle=False) as content:
        for key in content.files:
            number, kind, strict, part = key.split("/")
            if part == "feeds":
                feeds = unpack(content[key].tobytes())
                answer = unpack(content[f"{number}/{kind}/{strict}/answer"].tobytes())
                cases.append(Case(kind, strict == "strict", feeds, answer))
    return cases


# Comparing and timing.


def run(loaded: LoadedModel, feeds: Feeds) -> dict[str, np.ndarray]:
    """Run one request through a loaded model; returns copies of its outputs by name."""
    runtime = loaded.runtime
    if isinstance(runtime, JoiningRuntime):
        return {name: np.array(array) for name, array in runtime.run_tensors(feeds).items()}
    rows = len(next(iter(feeds.values())))
    size = loaded.sizes.filled(rows)
    inputs = [np.resize(feeds[spec.name], (size, *spec.shape)) for spec in loaded.signature.inputs]
    outputs: Sequence[Any] = runtime.run(inputs)
    return {
        spec.name: np.array(output[:rows])
        for spec, output in zip(loaded.signature.outputs, outputs, strict=True)
    }


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
