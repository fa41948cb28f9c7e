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
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from stoker.device.batch_sizes import with_batch_sizes
from stoker.device.bucket_choice import BucketChoice, choose_buckets
from stoker.device.first_batches import is_pipelined, time_batches
from stoker.device.loaded_model import LoadedModel
from stoker.device.loading import fork, sizes_to_time
from stoker.errors import OperatorError, StokerError
from stoker.offline.loading import enter_model_device, enter_script, find_model, load_model
from stoker.profiling.sample_requests import SampleRequest, make_request, prepare_batches
from stoker.runtimes.base import ForkingRuntime, Runtime, powers_of_two

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
    request = make_request(loaded, deployment, order.rows)
    begin = prepare_batches(loaded, deployment, request)
    alone = _time_alone(begin, loaded, order, report, clock_ns)
    beside: list[tuple[int, int]] = []
    forks = isinstance(loaded.runtime, ForkingRuntime)
    if forks:
        report({"step": "two at once"})
        beside = _time_beside(begin, loaded, deployment.name, alone, order.seconds * _BESIDE_PART, clock_ns)
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


def _time_alone(
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
            times = list(_time_runs(begin(loaded.runtime, size), share_ns, clock_ns))
        timed += [(size, elapsed_ns) for elapsed_ns in times]
        middle_ms = sorted(times)[len(times) // 2] / 1e6
        report({"rows": size, "ms": round(middle_ms, 4), "done": number + 1, "of": len(sizes)})
        if middle_ms > order.target_ms:
            break
    return timed


def _time_runs(run: Callable[[], object], share_ns: float, clock_ns: Callable[[], int]) -> Iterable[int]:
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


def _time_beside(
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
                thread.submit(list, _time_runs(run, share_ns, clock_ns))
                for thread, run in zip((first, second), runs, strict=True)
            ]
            times = [half.result() for half in halves]
            # The last batches of one instance may have run alone.
            both = min(map(len, times))
            timed += [(size, elapsed_ns) for half in times for elapsed_ns in half[: max(1, both - 1)]]
        return timed


def main(arguments: list[str]) -> int:
    """Measure as the first argument, an `Order`, says; write to the file descriptor in the second argument."""
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
