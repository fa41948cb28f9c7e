"""Times batches of a model as a device process runs them, in a process of its own.

Run as `python -m stoker.profiling.measuring`. So the caller is not affected by the framework's memory, threads and
crashes, and a script has its own folder and variables. Results are JSON lines on a dedicated file descriptor, because
models may print to standard output.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from stoker.deployment import Deployment
from stoker.device.batch_sizes import with_batch_sizes
from stoker.device.bucket_choice import BucketChoice, choose_buckets
from stoker.device.first_batches import batch_inputs, is_pipelined, time_batches
from stoker.device.loaded_model import LoadedModel
from stoker.device.loading import fork, sizes_to_time
from stoker.errors import InvalidSettings, LoadFailed, OperatorError, StokerError
from stoker.offline.loading import enter_model_device, enter_script, find_model, load_model
from stoker.offline.script_bodies import ScriptBodies
from stoker.runtimes.base import ForkingRuntime, RowFailure, Runtime, powers_of_two
from stoker.samples.sample import find_sample_feeds, first_rows
from stoker.scripts.script_sample import find_sample
from stoker.tensors import Signature, number_kind
from stoker.wire.oip_tensors import DATATYPES
from stoker.wire.packed import pack
from stoker_client import tensors as client

# Sample requests to measure a model with, given or made from its signature, as batches and as HTTP requests.


_HEADER_LENGTH: Final = "Inference-Header-Content-Length"
_SEED: Final = 11


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request as a caller would send it.

    Attributes:
        path: The path it is posted to.
        note: A description for the operator.
        packed: For a model that takes whole requests, the row that it receives; empty for others.
    """

    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    note: str = ""
    packed: bytes = b""


def request_of(loaded: LoadedModel, deployment: Deployment, rows: int) -> SampleRequest:
    """Make a request for a model.

    Raises:
        InvalidSettings: A sample is needed, or the sample determines the number of rows.
        LoadFailed: The sample cannot be read, or the model fails on it.
    """
    signature = loaded.signature
    if signature.takes == "body":
        return _script_request(loaded, deployment, rows)
    sample = find_sample_feeds(deployment, _tensors(signature).inputs)
    if signature.takes == "rows":
        specs = signature.inputs
        feeds = dict(zip((spec.name for spec in specs), _rows(loaded, rows), strict=True))
        noun = "rows" if rows > 1 else "row"
        note = f"{rows} {noun} of {sample.source}" if sample else f"{rows} random {noun}"
        return _infer(deployment.name, signature, feeds, f"{note}, binary")
    if sample is None:
        raise InvalidSettings(
            f"{deployment.name} takes tensors of free sizes ({signature}), so a request like those of its callers is "
            "needed: give one by --data FILE, or lay it beside the model as sample_input.json"
        )
    if rows > 1:
        raise InvalidSettings(
            f"{deployment.name} gets requests as they are; leave --rows out, and write the rows into --data FILE"
        )
    request = _infer(deployment.name, signature, sample.feeds, f"the request of {sample.source}, binary")
    return SampleRequest(
        request.path, request.headers, request.body, request.note, packed=pack(dict(sample.feeds))
    )


def batches_of(
    loaded: LoadedModel, deployment: Deployment, request: SampleRequest
) -> Callable[[Runtime, int], Callable[[], object]]:
    """Return a function that, for a runtime of the model and a batch size, returns a function that runs one batch.

    Args:
        request: The request that fills batches of whole requests.
    """

    def begin(runtime: Runtime, size: int) -> Callable[[], object]:
        inputs = [[request.packed] * size] if request.packed else batch_inputs(runtime, size, loaded.sample)
        return lambda: runtime.run(inputs)

    if request.packed:
        _check(loaded.runtime.run([[request.packed]]), deployment.name)
    return begin


def _rows(loaded: LoadedModel, rows: int) -> list[np.ndarray]:
    """The rows of a request: those of the sample, or random numbers between 0 and 1."""
    inputs = first_rows(loaded.signature.inputs, rows, loaded.sample)
    if loaded.sample is not None:
        return inputs
    chance = np.random.default_rng(_SEED)
    # Zeros might compute faster than other numbers, and are shorter as text.
    return [
        chance.random(array.shape).astype(array.dtype) if number_kind(array.dtype) == "f" else array
        for array in inputs
    ]


def _script_request(loaded: LoadedModel, deployment: Deployment, rows: int) -> SampleRequest:
    form = loaded.signature.script
    assert form is not None, "scripts that take bodies have one"
    sample = find_sample(deployment, form)
    if sample is None:
        raise InvalidSettings(
            f"{deployment.name} is a script, whose requests only its author knows: give one that it answers by "
            "--data FILE, lay it beside the script as sample_input.json, or decorate run with inference_schema"
        )
    if rows > 1:
        raise InvalidSettings(
            f"{deployment.name} gets whole bodies; leave --rows out, and write as many rows into --data FILE"
        )
    scripts = ScriptBodies(loaded, 1)
    # Refused requests cost less than answered ones, so the sample has to be answered.
    for _ in scripts.answers([sample.body]):
        pass
    return SampleRequest(
        f"/api/v1/service/{quote(deployment.name)}/score",
        {"Content-Type": sample.content_type},
        sample.body,
        f"the body of {sample.source}",
        packed=scripts.request(0, sample.body),
    )


def _infer(name: str, signature: Signature, feeds: Mapping[str, np.ndarray], note: str) -> SampleRequest:
    inputs = tuple(
        client.TensorInfo(info.name, DATATYPES[info.dtype], info.shape) for info in _tensors(signature).inputs
    )
    body, text_bytes = client.encode_inputs(client.ModelTensors(name, inputs, ()), feeds, None)
    headers = {"Content-Type": "application/octet-stream", _HEADER_LENGTH: str(text_bytes)}
    return SampleRequest(f"/v2/models/{quote(name)}/infer", headers, body, note)


def _tensors(signature: Signature) -> Any:
    # Of several signatures, requests that name none use the first.
    return signature.named[0].tensors


def _check(outputs: Any, name: str) -> None:
    for answer in outputs[0]:
        if isinstance(answer, RowFailure):
            raise LoadFailed(f"{name} fails on its sample: {answer.error}")


_LEAST_TIMES: Final = 5
_MOST_TIMES: Final = 64
_PIPELINED_TIMES: Final = 16
_BESIDE_PART: Final = 0.3
"""The share of the measuring time for concurrent batches."""

Report = Callable[[dict[str, Any]], None]
Batches = Callable[[Runtime, int], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Order:
    """A measurement to make.

    Attributes:
        model: A path, or a registered model; with `config` one of its models.
        settings: Further settings of the model.
        device: Its device, in the notation of settings; `auto` for the configured one.
        target_ms: Batches that take longer than this are not measured further.
        rows: Number of rows of the sample request.
        seconds: Time limit, without loading.
    """

    model: str
    workspace: str | None
    config: str | None
    settings: dict[str, Any]
    device: str
    target_ms: float
    rows: int
    seconds: float

    def to_json(self) -> str:
        """The order as the process's argument."""
        return json.dumps(asdict(self))


def measure(order: Order, report: Report, leases: ExitStack, clock_ns: Callable[[], int]) -> dict[str, Any]:
    """Load the model and time its batches, alone and beside another one, in nanoseconds.

    Raises:
        OperatorError: The model cannot be loaded, or there is no sample request.
    """
    report({"step": "loading"})
    # Batch settings depend on whether there is a target, so the model is loaded with the one it will have.
    settings = {**order.settings, "target_ms": order.target_ms}
    deployment = find_model(order.model, order.workspace, order.config, settings, leases)
    report({"step": f"loading {deployment.name}", "load_timeout_s": deployment.load_timeout_s})
    if deployment.framework == "script":
        enter_script(deployment)
    where = deployment.devices[0] if order.device == "auto" else order.device
    device = enter_model_device(deployment, where)
    # With the sizes that the load would choose among, all of them are measured.
    deployment = with_batch_sizes(deployment, device)
    chooses = deployment.batch_buckets is None
    if chooses:
        deployment = replace(deployment, batch_buckets=sizes_to_time(deployment))
    loaded = load_model(deployment, device)
    report({"step": "measuring"})
    request = request_of(loaded, deployment, order.rows)
    begin = batches_of(loaded, deployment, request)
    alone = _alone(begin, loaded, order, report, clock_ns)
    beside: list[tuple[int, int]] = []
    forks = isinstance(loaded.runtime, ForkingRuntime)
    if forks:
        report({"step": "two at once"})
        beside = _beside(begin, loaded, deployment.name, alone, order.seconds * _BESIDE_PART, clock_ns)
    choice = BucketChoice(loaded.sizes.buckets, "")
    if chooses and choice.buckets:
        choice = choose_buckets(_medians(alone), order.target_ms)
    return {
        "name": deployment.name,
        "reference": f"{deployment.name}:{deployment.version}",
        "framework": deployment.framework,
        "device": str(device),
        "alone": alone,
        "beside": beside,
        "forks": forks,
        "takes": loaded.signature.takes,
        "max_batch_rows": choice.buckets[-1] if choice.buckets else loaded.max_batch_rows,
        "instances": loaded.instances,
        "batch_buckets": list(choice.buckets),
        "buckets_because": choice.reason,
        "admission": deployment.admission,
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "request": _request_facts(request),
    }


def _medians(timed: list[tuple[int, int]]) -> dict[int, float]:
    by_size: dict[int, list[int]] = {}
    for size, elapsed_ns in timed:
        by_size.setdefault(size, []).append(elapsed_ns)
    return {size: statistics.median(times) for size, times in by_size.items()}


def _request_facts(request: SampleRequest) -> dict[str, Any]:
    return {
        "path": request.path,
        "headers": request.headers,
        "body": base64.b64encode(request.body).decode(),
        "note": request.note,
    }


def _alone(
    begin: Batches, loaded: LoadedModel, order: Order, report: Report, clock_ns: Callable[[], int]
) -> list[tuple[int, int]]:
    """Time batches of each size in ascending order, until one takes longer than the target."""
    sizes = loaded.sizes.buckets or powers_of_two(loaded.max_batch_rows)
    share_ns = order.seconds * (1 - _BESIDE_PART) / len(sizes) * 1e9
    timed: list[tuple[int, int]] = []
    for number, size in enumerate(sizes):
        if is_pipelined(loaded.runtime):
            # Copies run beside the computation of other batches.
            _, *times = time_batches(loaded.runtime, size, loaded.sample, 1 + _PIPELINED_TIMES)
        else:
            times = list(_times(begin(loaded.runtime, size), share_ns, clock_ns))
        timed += [(size, elapsed_ns) for elapsed_ns in times]
        middle_ms = sorted(times)[len(times) // 2] / 1e6
        report({"rows": size, "ms": round(middle_ms, 4), "done": number + 1, "of": len(sizes)})
        if middle_ms > order.target_ms:
            break
    return timed


def _times(run: Callable[[], object], share_ns: float, clock_ns: Callable[[], int]) -> Iterable[int]:
    # The first run of a size selects kernels and allocates memory.
    run()
    begun_ns = last_ns = clock_ns()
    for number in range(_MOST_TIMES):
        run()
        now_ns = clock_ns()
        yield now_ns - last_ns
        last_ns = now_ns
        if number + 1 >= _LEAST_TIMES and now_ns - begun_ns > share_ns:
            return


def _beside(
    begin: Batches,
    loaded: LoadedModel,
    name: str,
    alone: list[tuple[int, int]],
    seconds: float,
    clock_ns: Callable[[], int],
) -> list[tuple[int, int]]:
    """Time batches of the sizes that were timed alone while a second instance runs the same batches."""
    sizes = sorted({size for size, _ in alone})
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        # Each instance is created by the thread that uses it; the first one belongs to this thread.
        other, _ = second.submit(fork, loaded, name).result()
        timed = []
        for size in sizes:
            runs = begin(loaded.runtime, size), begin(other, size)
            share_ns = seconds / len(sizes) * 1e9
            for run in runs:
                run()
            halves = [
                thread.submit(list, _times(run, share_ns, clock_ns))
                for thread, run in zip((first, second), runs, strict=True)
            ]
            times = [half.result() for half in halves]
            # The last batches of one instance may have run alone.
            both = min(map(len, times))
            timed += [(size, elapsed_ns) for half in times for elapsed_ns in half[: max(1, both - 1)]]
        return timed


def main(arguments: list[str]) -> int:
    """Measure what the first argument says, and write results to the file descriptor in the second one."""
    order, channel = Order(**json.loads(arguments[0])), int(arguments[1])

    def report(message: dict[str, Any]) -> None:
        os.write(channel, json.dumps(message).encode() + b"\n")

    with ExitStack() as leases:
        try:
            report({"measured": measure(order, report, leases, time.perf_counter_ns)})
        except OperatorError as error:
            report({"error": str(error), "exit_code": error.exit_code})
        except StokerError as error:
            report({"error": f"{Path(order.model).name} fails on its sample: {error}", "exit_code": 1})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
