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
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stoker.device.batch_sizes import powers_of_two
from stoker.device.lifecycle import LoadedModel, fork
from stoker.errors import OperatorError, StokerError
from stoker.offline.choosing import chosen, device_here, enter_script, load_here
from stoker.profiling.samples import SampleRequest, batches_of, request_of
from stoker.runtimes.base import ForkingRuntime, Runtime

__all__ = ["Order", "main", "measure"]

_LEAST_TIMES: Final = 5
_MOST_TIMES: Final = 64
_BESIDE_PART: Final = 0.3
"""The share of the measuring time for concurrent batches."""

Tell = Callable[[dict[str, Any]], None]
Batches = Callable[[Runtime, int], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Order:
    """What to measure.

    Attributes:
        model: A path, or a registered model; with `config` one of its models.
        workspace: The workspace; None finds it.
        config: A deployment file, or None.
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


def measure(order: Order, tell: Tell, leases: ExitStack, clock_ns: Callable[[], int]) -> dict[str, Any]:
    """Load the model and time its batches, alone and beside another one, in nanoseconds.

    Raises:
        OperatorError: The model cannot be loaded, or there is no sample request.
    """
    tell({"step": "loading"})
    # Batch settings depend on whether there is a target, so the model is loaded with the one it will have.
    settings = {**order.settings, "target_ms": order.target_ms}
    deployed = chosen(order.model, order.workspace, order.config, settings, leases)
    servable = deployed.servable
    tell({"step": f"loading {servable.name}", "load_timeout_s": servable.terms.load_timeout_s})
    if servable.framework == "script":
        enter_script(servable)
    where = deployed.placement.devices[0] if order.device == "auto" else order.device
    device = device_here(servable, where)
    loaded = load_here(servable, device, deployed.threads)
    tell({"step": "measuring"})
    request = request_of(loaded, servable, order.rows)
    begin = batches_of(loaded, servable, request)
    alone = _alone(begin, loaded, order, tell, clock_ns)
    beside: list[tuple[int, int]] = []
    forks = isinstance(loaded.runtime, ForkingRuntime)
    if forks:
        tell({"step": "two at once"})
        beside = _beside(begin, loaded, servable.name, alone, order.seconds * _BESIDE_PART, clock_ns)
    return {
        "name": servable.name,
        "reference": f"{servable.name}:{servable.version}",
        "framework": servable.framework,
        "device": str(device),
        "alone": alone,
        "beside": beside,
        "forks": forks,
        "takes": loaded.signature.takes,
        "max_batch_rows": loaded.max_batch_rows,
        "instances": loaded.instances,
        "batch_buckets": list(loaded.sizes.buckets),
        "hold": servable.terms.hold,
        "admission": servable.terms.admission,
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "request": _told(request),
    }


def _told(request: SampleRequest) -> dict[str, Any]:
    return {
        "path": request.path,
        "headers": request.headers,
        "body": base64.b64encode(request.body).decode(),
        "note": request.note,
    }


def _alone(
    begin: Batches, loaded: LoadedModel, order: Order, tell: Tell, clock_ns: Callable[[], int]
) -> list[tuple[int, int]]:
    """Time batches of each size in ascending order, until one takes longer than the target."""
    sizes = loaded.sizes.buckets or powers_of_two(loaded.max_batch_rows)
    share_ns = order.seconds * (1 - _BESIDE_PART) / len(sizes) * 1e9
    timed: list[tuple[int, int]] = []
    for number, size in enumerate(sizes):
        times = list(_times(begin(loaded.runtime, size), share_ns, clock_ns))
        timed += [(size, elapsed_ns) for elapsed_ns in times]
        middle_ms = sorted(times)[len(times) // 2] / 1e6
        tell({"rows": size, "ms": round(middle_ms, 4), "done": number + 1, "of": len(sizes)})
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

    def tell(message: dict[str, Any]) -> None:
        os.write(channel, json.dumps(message).encode() + b"\n")

    with ExitStack() as leases:
        try:
            tell({"measured": measure(order, tell, leases, time.perf_counter_ns)})
        except OperatorError as error:
            tell({"error": str(error), "exit_code": error.exit_code})
        except StokerError as error:
            tell({"error": f"{Path(order.model).name} fails on its sample: {error}", "exit_code": 1})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
