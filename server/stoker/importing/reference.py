"""The reference of an import: requests that are made up for the original, with the answers that it gives.

See decision 57.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct

from stoker.deployment import Deployment
from stoker.device.loaded_model import LoadedModel
from stoker.errors import LoadFailed
from stoker.isolation.companions import LADDER, NON_FINITE, Companions
from stoker.isolation.made_up_rows import made_up_rows
from stoker.isolation.model_errors import in_one_line
from stoker.runtimes.base import JoiningRuntime, OutOfMemory
from stoker.samples.sample import find_sample_feeds
from stoker.tensors import TensorInfo, all_finite, number_kind
from stoker.wire.packed import pack, unpack

Feeds = Mapping[str, np.ndarray]

_ROWS: Final = 3
_HALVINGS: Final = 6
_MAY_DIFFER: Final = ("huge", *NON_FINITE)
"""Kinds of inputs on which frameworks overflow, or spread NaN, in ways of their own."""
_MOST_BYTES: Final = 256 << 20
_SEED: Final = 20261127


class Case(Struct, frozen=True):
    """A request, with the original's answer.

    Attributes:
        kind: What its inputs are.
        strict: Whether each way has to give this answer.
    """

    kind: str
    strict: bool
    feeds: Feeds
    answer: Feeds


def record(loaded: LoadedModel, deployment: Deployment) -> list[Case]:
    """Ask the original: its sample, random rows, a batch of them, and the extremes that it accepts.

    Raises:
        LoadFailed: It answers nothing that was made up.
    """
    tensors = loaded.signature.model_tensors
    if tensors is None:
        raise LoadFailed(f"{deployment.name} has no tensors for inputs")
    base = _accepted_rows(loaded, deployment, tensors.inputs)
    cases = [_answered_case(loaded, "random", feeds) for feeds in base]
    free = all(info.shape[:1] == (-1,) for info in tensors.inputs)
    if free:
        cases.append(_answered_case(loaded, "batch", _joined(base)))
    sample = find_sample_feeds(deployment, tensors.inputs)
    if sample is not None:
        cases.append(_answered_case(loaded, "sample", sample.feeds))
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
    for companions in made_up_rows(inputs):
        base = companions.rows
        try:
            for feeds in base:
                run(loaded, feeds)
        except Exception as error:  # noqa: BLE001  # a model may raise anything for made-up rows
            refusal = refusal or in_one_line(error)
            continue
        most = _ranges(loaded, inputs, base[0])
        wide = [_widened(feeds, seed, most) for seed, feeds in enumerate(base)]
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

        for number in (each for each in LADDER if each <= np.iinfo(info.dtype).max):
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


def _widened(feeds: Feeds, seed: int, most: Mapping[str, int]) -> Feeds:
    """Return a request with normal numbers, and with integers up to `most`, in place of small ones."""
    random = np.random.default_rng((_SEED, seed))
    wide = dict(feeds)
    for name, array in feeds.items():
        if name in most:
            wide[name] = random.integers(0, most[name] + 1, array.shape).astype(array.dtype)
        elif number_kind(array.dtype) == "f":
            wide[name] = random.standard_normal(array.shape).astype(array.dtype)
    return wide


def _joined(requests: Sequence[Feeds]) -> Feeds:
    return {name: np.concatenate([one[name] for one in requests]) for name in requests[0]}


def _answered_case(loaded: LoadedModel, kind: str, feeds: Feeds) -> Case:
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
