"""Loading a deployment in a device process: load, warm up, ready."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import numpy as np

from stoker.arena import Arena
from stoker.deployment import Deployment, Device
from stoker.device.batch_sizes import BatchSizes, timed_first, with_batch_sizes
from stoker.device.bucket_choice import candidate_sizes, choose_buckets, gains_by_growing
from stoker.errors import LoadFailed
from stoker.isolation.companions import sample_feeds
from stoker.runtimes.base import (
    GPU_INSTANCES,
    BufferedRuntime,
    ChosenRuntime,
    ForkingRuntime,
    OutOfMemory,
    PipelinedRuntime,
    RestoringRuntime,
    RowFailure,
    Runtime,
    SizedRuntime,
    powers_of_two,
)
from stoker.samples.sample import find_sample_feeds, first_rows
from stoker.system.extras import onnx_missing
from stoker.system.processes import ExitCode, end_process
from stoker.system.resources import require_memory
from stoker.tensors import Signature, check_batch
from stoker.wire.packed import pack

logger = logging.getLogger(__name__)


_TRIES: Final = 3
_TRY_AGAIN_S: Final = 0.5


def first_row(
    signature: Signature, sizes: BatchSizes, sample: Mapping[str, np.ndarray] | None = None
) -> list[Any]:
    """The inputs of a batch of one row: of the sample, or zeros; one packed request for a model of free sizes."""
    if signature.tensors is not None:
        return [[pack(sample or sample_feeds(signature.tensors.inputs, 1))]]
    return list(first_rows(signature.inputs, sizes.filled(1), sample))


class Canary:
    """Runs the row, and ends the process if that fails.

    Attributes:
        idle_ns: After this long without a batch the canary is run.
    """

    idle_ns: Final = 10_000_000_000

    def __init__(
        self,
        inputs: Sequence[Any],
        *,
        end_process: Callable[[ExitCode], None] = end_process,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Keep the row.

        Args:
            inputs: The row, in the form of `Runtime.run`; the model has run it successfully before.
            end_process: Ends this process, which the supervisor then restarts.
            sleep: Sleeps for some seconds.
        """
        self._inputs = inputs
        self._end_process = end_process
        self._sleep = sleep

    def check(self, runtime: Runtime) -> None:
        """Run the row on the thread of `runtime`; end the process if that fails.

        It is tried a second time first: the cause may be on another thread, such as a graph being captured, or
        memory that is about to be freed.
        """
        failure: BaseException | None = None
        for attempt in range(_TRIES):
            if attempt:
                self._sleep(_TRY_AGAIN_S)
            failure = self.failure(runtime)
            if failure is None:
                return
        logger.critical(
            "%s: the device does not even compute one row of zeros any more: the device process exits",
            threading.current_thread().name,
            exc_info=failure,
        )
        self._end_process(ExitCode.CANARY_FAILED)

    def failure(self, runtime: Runtime) -> BaseException | None:
        """Run the row once; returns why it failed, or None."""
        try:
            outputs = runtime.run(self._inputs)
        except BaseException as error:  # noqa: BLE001  # whatever the device ends in
            return error
        first = outputs[0][0]
        return first.error if isinstance(first, RowFailure) else None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A deployment that is ready to serve.

    Attributes:
        runtime: The runtime, for the thread that has loaded it.
        load_s: Seconds until it was loaded.
        warm_up_s: Seconds that its first batches took.
        max_batch_rows: Most rows in one batch.
        sizes: The allowed sizes of its batches.
        instances: How many batches may run at the same time, each on a thread with a runtime of its own.
        canary: Checks whether its device still works; None if no inputs can be made up for it.
        sample: Sample rows that it is known to answer; None to use zeros.
        full_batch_s: Seconds that a batch of `max_batch_rows` takes when warm; 0 if not measured.
        warm_up_runs: How often a batch of each size runs at first, also in each further instance.
    """

    runtime: Runtime
    load_s: float
    warm_up_s: float
    max_batch_rows: int
    sizes: BatchSizes
    instances: int
    canary: Canary | None
    sample: Mapping[str, np.ndarray] | None = None
    full_batch_s: float = 0.0
    warm_up_runs: int = 1

    @property
    def signature(self) -> Signature:
        """The signature of the deployment."""
        return self.runtime.signature


def load(
    deployment: Deployment, device: Device, clock_ns: Callable[[], int] = time.perf_counter_ns
) -> LoadedModel:
    """Load a deployment and run its first batches, one of each size, so that no request has to wait for that.

    A model on demand whose file this process has loaded before runs one row on a CPU. On a GPU without
    `batch_buckets` the sizes that pay are chosen by timing them.

    Raises:
        LoadFailed: It cannot be loaded, it fails on its first batches, or its settings contradict each other.
    """
    begun = time.perf_counter()
    deployment = with_batch_sizes(deployment, device)
    chooses = deployment.batch_buckets is None
    if chooses and not _adds_sizes(deployment):
        deployment = dataclasses.replace(deployment, batch_buckets=powers_of_two(deployment.max_batch_rows))
    runtime = load_runtime(deployment, device)
    loaded = time.perf_counter()
    signature = runtime.signature
    sizes = BatchSizes(deployment.batch_buckets or () if signature.takes == "rows" else ())
    most = _most_rows(deployment, signature)
    sample = _sample(deployment, signature)
    full_batch_s = 0.0
    times_ns: Mapping[int, int] = {}
    if signature.takes == "rows":
        if chooses:
            times_ns = _choose_sizes(runtime, deployment, most, sample, clock_ns)
            sizes = BatchSizes(tuple(times_ns), chosen=True)
            most = sizes.buckets[-1]
            full_batch_s = _full_batch_s(runtime, deployment.name, most, sample)
        else:
            most, full_batch_s = _run_first_batches(runtime, deployment, device, most, sizes, sample)
        if isinstance(runtime, RestoringRuntime):
            runtime.restore()
    if device.kind == "cuda" and isinstance(runtime, ChosenRuntime) and runtime.choice:
        _log_choice(runtime, deployment.name, times_ns or _times_ns(runtime, sizes, most, sample, clock_ns))
    return LoadedModel(
        runtime,
        loaded - begun,
        time.perf_counter() - loaded,
        most,
        sizes,
        _instances(deployment, device, runtime),
        _canary(deployment, device, runtime, sizes, sample),
        sample,
        full_batch_s,
        deployment.warm_up_runs,
    )


def sizes_to_time(deployment: Deployment) -> tuple[int, ...]:
    """The sizes of batches among which the load chooses."""
    most = deployment.max_batch_rows
    return candidate_sizes(most) if _adds_sizes(deployment) else powers_of_two(most)


def _adds_sizes(deployment: Deployment) -> bool:
    """Whether sizes are prepared one after the other at the load; others have to be known when a runtime is made."""
    return deployment.framework in ("onnx", "torch") and deployment.acceleration.provider == "cuda"


def _choose_sizes(
    runtime: Runtime,
    deployment: Deployment,
    most: int,
    sample: Mapping[str, np.ndarray] | None,
    clock_ns: Callable[[], int],
) -> dict[int, int]:
    """Run batches of few sizes, time them, and choose those that pay; returns their times in ns, ascending."""
    sized = runtime if isinstance(runtime, SizedRuntime) else None
    if sized is not None:
        # They run when they are prepared.
        times_ns = _add_sizes(sized, deployment.name, most, sample)
    else:
        sizes = BatchSizes(powers_of_two(most))
        most = _warm_up(runtime, deployment.name, most, sizes, sample, deployment.warm_up_runs)
        times_ns = {
            # Whatever else the machine does only adds to it.
            size: max(1, min(time_batches(runtime, size, sample, _TIMED_RUNS, clock_ns)))
            for size in sizes.buckets
            if size <= most
        }
    choice = choose_buckets(times_ns, deployment.target_ms)
    spare = set(times_ns) - set(choice.buckets)
    if sized is not None and spare:
        for size in spare:
            sized.remove_size(size)
        sized.prepare_again()
    logger.info(
        "%s: batch_buckets %s: %s", deployment.name, ",".join(map(str, choice.buckets)), choice.reason
    )
    return {size: times_ns[size] for size in choice.buckets}


def _add_sizes(
    runtime: SizedRuntime, name: str, most: int, sample: Mapping[str, np.ndarray] | None
) -> dict[int, int]:
    """Prepare for batches of further sizes while larger ones do more rows a second; returns their times in ns."""
    times_ns = {size: max(1, min(time_batches(runtime, size, sample, _TIMED_RUNS))) for size in runtime.sizes}
    for size in candidate_sizes(most):
        if size in times_ns:
            continue
        try:
            times_ns[size] = max(1, runtime.add_size(size))
        except Exception as error:  # noqa: BLE001  # it serves in smaller batches
            logger.warning("%s: batches of %d rows and more are left out: %s", name, size, error)
            break
        if not gains_by_growing(times_ns):
            break
    return times_ns


def _times_ns(
    runtime: Runtime,
    sizes: BatchSizes,
    most: int,
    sample: Mapping[str, np.ndarray] | None,
    clock_ns: Callable[[], int],
) -> dict[int, int]:
    """The times in ns of warm batches of the sizes that are set; none of models whose rows are not made up."""
    if runtime.signature.takes != "rows":
        return {}
    times_ns = {}
    for size in timed_first(sizes.buckets, most):
        # A batch that fits only sometimes is found out while serving.
        with suppress(OutOfMemory):
            times_ns[size] = min(time_batches(runtime, size, sample, _TIMED_RUNS, clock_ns))
    return times_ns


def _log_choice(runtime: ChosenRuntime, name: str, times_ns: Mapping[int, int]) -> None:
    times = ", ".join(f"{size}: {elapsed_ns / 1e6:.3f}" for size, elapsed_ns in times_ns.items())
    logger.info("%s: %s%s", name, runtime.choice, f"; ms by rows: {times}" if times else "")


def fork(loaded: LoadedModel, name: str) -> tuple[Runtime, LoadedModel]:
    """Make another runtime of a loaded deployment for the calling thread, and run its first batches.

    Args:
        loaded: The loaded deployment; `instances` says how many runtimes it may have.

    Returns:
        The runtime, and `loaded` with the time that this took, and with smaller batches if need be.

    Raises:
        LoadFailed: It fails on zeros.
    """
    begun = time.perf_counter()
    assert isinstance(loaded.runtime, ForkingRuntime), "else it has one instance"
    runtime = loaded.runtime.fork()
    most = loaded.max_batch_rows
    if loaded.signature.takes == "rows":
        most = _warm_up(runtime, name, most, loaded.sizes, loaded.sample, loaded.warm_up_runs)
        if isinstance(runtime, RestoringRuntime):
            runtime.restore()
    warm_up_s = loaded.warm_up_s + time.perf_counter() - begun
    return runtime, dataclasses.replace(loaded, warm_up_s=warm_up_s, max_batch_rows=most)


def _sample(deployment: Deployment, signature: Signature) -> Mapping[str, np.ndarray] | None:
    """The rows of a model's sample input, if it has one; scripts get the sample as it is."""
    if deployment.framework == "script" or signature.model_tensors is None:
        return None
    sample = find_sample_feeds(deployment, signature.model_tensors.inputs)
    return None if sample is None else sample.feeds


def _most_rows(deployment: Deployment, signature: Signature) -> int:
    if signature.script is not None:
        # The script may take requests one by one only: then its answer must not wait for others.
        return signature.script.max_requests
    if signature.tensors is not None:
        # Requests may have rows, and still run one after the other.
        alone = not signature.signatures and signature.isolation and not signature.isolation.batched
        if alone or not any(named.tensors.batched for named in signature.named):
            return 1
    return deployment.max_batch_rows


def is_pipelined(runtime: Runtime) -> TypeGuard[PipelinedRuntime]:
    """Whether batches of a runtime are begun one behind the other, not run."""
    return isinstance(runtime, PipelinedRuntime) and runtime.signature.takes == "rows"


def _instances(deployment: Deployment, device: Device, runtime: Runtime) -> int:
    if is_pipelined(runtime):
        # It has the batches in flight that `instances` asks for.
        return 1
    forks = isinstance(runtime, ForkingRuntime)
    if deployment.instances is None:
        # A script need not be safe for several threads.
        several = forks and device.kind == "cuda" and deployment.framework != "script"
        return GPU_INSTANCES if several else 1
    if deployment.instances > 1 and not forks:
        raise LoadFailed(
            f"{deployment.name} cannot have {deployment.instances} instances: an entry script runs on one thread "
            "unless it yields or is given state; leave instances out, or set replicas for several processes"
        )
    return deployment.instances


def _canary(
    deployment: Deployment,
    device: Device,
    runtime: Runtime,
    sizes: BatchSizes,
    sample: Mapping[str, np.ndarray] | None,
) -> Canary | None:
    """A canary for frameworks on GPUs; none for scripts, whose `run` may have side effects, and models with state."""
    has_effects = deployment.framework == "script" or runtime.signature.keeps_state
    if device.kind == "cpu" or has_effects:
        return None
    canary = Canary(first_row(runtime.signature, sizes, sample))
    if (failure := canary.failure(runtime)) is not None:
        logger.warning(
            "%s: the device cannot be checked by a canary while it serves: %s", deployment.name, failure
        )
        return None
    return canary


_MOST_KNOWN: Final = 10_000
_known_batches: dict[tuple[object, ...], tuple[int, float]] = {}
"""By the file of a model that is loaded on demand: the most rows of a batch, and the seconds of such a batch."""


def _run_first_batches(
    runtime: Runtime,
    deployment: Deployment,
    device: Device,
    max_batch_rows: int,
    sizes: BatchSizes,
    sample: Mapping[str, np.ndarray] | None,
) -> tuple[int, float]:
    """Warm up, and time a full batch; where both are known from an earlier load on a CPU, run one row.

    Returns:
        The most rows for which the device has memory, and the seconds of a full batch.
    """
    name, runs = deployment.name, deployment.warm_up_runs
    # Loads are repeated beside models that serve, whose cores full batches would take.
    key = deployment.file_key() if device.kind == "cpu" and runs == 1 else ()
    known = _known_batches.get(key)
    if known is not None:
        _warm_up(runtime, name, sizes.filled(1), sizes, sample, runs)
        return known
    most = _warm_up(runtime, name, max_batch_rows, sizes, sample, runs)
    full_batch_s = _full_batch_s(runtime, name, most, sample)
    if key and len(_known_batches) < _MOST_KNOWN:
        _known_batches[key] = most, full_batch_s
    return most, full_batch_s


def _warm_up(
    runtime: Runtime,
    name: str,
    max_batch_rows: int,
    sizes: BatchSizes,
    sample: Mapping[str, np.ndarray] | None,
    runs: int,
) -> int:
    """Run batches of the sample or of zeros of each size, the largest first, whose memory is enough for all others.

    Returns:
        The most rows for which the device has memory.
    """
    most = max_batch_rows
    todo = sorted({size for size in sizes.buckets or (1, most) if size <= most}, reverse=True)
    while todo:
        try:
            for _ in range(runs):
                _run_first(runtime, name, todo[0], sample)
        except OutOfMemory as error:
            smaller = sizes.smaller(todo[0])
            if smaller is None:
                raise LoadFailed(f"the device has no memory for one row of {name}: {error}") from error
            logger.warning(
                "%s: the device has no memory for a batch of %d rows; max_batch_rows is %d: %s",
                name,
                todo[0],
                smaller,
                error,
            )
            most = smaller
            todo = [smaller, *(size for size in todo if size < smaller)]
        else:
            del todo[0]
    return most


def _full_batch_s(runtime: Runtime, name: str, rows: int, sample: Mapping[str, np.ndarray] | None) -> float:
    """Run a full batch again, now without first-time costs; returns the seconds that it took."""
    begun = time.perf_counter()
    try:
        if is_pipelined(runtime):
            return time_batches(runtime, rows, sample, 1)[0] / 1e9
        _run_first(runtime, name, rows, sample)
    except OutOfMemory:
        # A batch that fits only sometimes is found out while serving.
        return 0.0
    return time.perf_counter() - begun


def run_larger_batches(loaded: LoadedModel, name: str, most: int, goes_on: Callable[[], bool]) -> None:
    """Run batches of more rows than a deployment was loaded with, each twice as large as the one before.

    Args:
        loaded: The deployment, on the CPU.
        most: Rows of the largest batch.
        goes_on: Called before each; False stops.

    Raises:
        LoadFailed: One of them fails; the message names the largest number of rows that works.
    """
    good = loaded.max_batch_rows
    while loaded.signature.takes == "rows" and good < most and goes_on():
        rows = min(2 * good, most)
        try:
            _run_first(loaded.runtime, name, rows, loaded.sample)
        except OutOfMemory:
            # A server would use smaller batches then.
            return
        except LoadFailed as error:
            raise LoadFailed(f"{error}; serve it with max_batch_rows of at most {good}") from error
        good = rows


def _run_first(runtime: Runtime, name: str, rows: int, sample: Mapping[str, np.ndarray] | None) -> None:
    fixed = [spec for spec in (*runtime.signature.inputs, *runtime.signature.outputs) if not spec.variable]
    try:
        require_memory(rows * sum(spec.row_bytes for spec in fixed), f"a batch of {rows} rows")
    except MemoryError as error:
        raise OutOfMemory(str(error)) from error
    inputs = batch_inputs(runtime, rows, sample)
    try:
        outputs: Any = runtime.run(inputs)
        for spec, batch in zip(runtime.signature.outputs, outputs, strict=True):
            if not spec.variable:
                check_batch(spec, batch, rows)
    except OutOfMemory:
        raise
    except Exception as error:
        what = "zeros" if sample is None else "its sample input"
        raise LoadFailed(f"{name} fails on a batch of {rows} rows of {what}: {error}") from error


def import_runtime(framework: str) -> None:
    """Import what loads models of a framework.

    Raises:
        LoadFailed: It is not installed.
    """
    _loader(framework)


def load_runtime(deployment: Deployment, device: Device) -> Runtime:
    """Load a deployment onto a device.

    Args:
        deployment: What to load.
        device: Where it runs.
        threads: Threads that one CPU operation may use.

    Raises:
        LoadFailed: It cannot be loaded; the message says why.
    """
    load = _loader(deployment.framework)
    try:
        return load(deployment, device, deployment.threads)
    except MemoryError as error:
        raise LoadFailed(
            f"{deployment.name}: {error}; give its inputs smaller sizes, or serve it where there is more memory"
        ) from error


def _loader(framework: str) -> Callable[[Deployment, Device, int], Runtime]:
    match framework:
        case "onnx":
            try:
                from stoker.runtimes.onnx.loading import load_onnx
            except ImportError as error:
                raise LoadFailed(f"an ONNX model needs ONNX Runtime ({error}); {onnx_missing()}") from error
            return load_onnx
        case "tensorflow":
            from stoker.runtimes.tensorflow import load_saved_model

            return load_saved_model
        case "torch":
            from stoker.runtimes.torch import load_torch

            return load_torch
        case "sklearn":
            from stoker.runtimes.sklearn import load_sklearn

            return load_sklearn
        case "script":
            from stoker.runtimes.script import load_script

            return load_script
        case _:
            raise LoadFailed(
                f"framework {framework!r} cannot be served by itself; register it with an entry script (score.py)"
            )


_TIMES: Final = 2
_TIMED_RUNS: Final = 3


def first_times(
    loaded: LoadedModel, clock_ns: Callable[[], int] = time.perf_counter_ns
) -> list[tuple[int, int]]:
    """Run a warm model twice with batches of each allowed size; without buckets, of one, two, half and all rows.

    Args:
        loaded: The model; called on the thread that has loaded it.

    Returns:
        Rows and nanoseconds of each batch; none of models whose rows are not made up.
    """
    if loaded.runtime.signature.takes != "rows":
        return []
    times = []
    for size in timed_first(loaded.sizes.buckets, loaded.max_batch_rows):
        try:
            # Sizes that are not buckets have not been run before.
            _, *warm_ns = time_batches(loaded.runtime, size, loaded.sample, 1 + _TIMES, clock_ns)
            times += [(size, elapsed_ns) for elapsed_ns in warm_ns]
        except Exception as error:  # noqa: BLE001  # it serves all the same, and learns then
            logger.warning("a batch of %d rows could not be timed: %s", size, error)
    return times


def time_batches(
    runtime: Runtime,
    rows: int,
    sample: Mapping[str, np.ndarray] | None,
    runs: int,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> list[int]:
    """Compute batches of made-up rows, or of the sample's; returns how long each took, in nanoseconds.

    Where batches are begun one behind the other, the time is that of the computation alone.

    Args:
        runtime: A runtime of a model whose signature takes `rows`, none of whose batches is in flight.
        rows: How many rows a batch has.
        sample: Rows that the model is known to answer; None for zeros.
        runs: How many batches.
    """
    taken_ns = []
    if is_pipelined(runtime) and rows in runtime.sizes:
        with _arena_of(runtime, first_rows(runtime.signature.inputs, rows, sample), rows) as arena:
            for _ in range(runs):
                flight = runtime.begin([(arena, np.arange(rows, dtype=np.uint32))], rows, rows)
                try:
                    flight.result()
                finally:
                    flight.release()
                taken_ns.append(flight.computed_ns)
        return taken_ns
    inputs = batch_inputs(runtime, rows, sample)
    for _ in range(runs):
        begun_ns = clock_ns()
        runtime.run(inputs)
        taken_ns.append(clock_ns() - begun_ns)
    return taken_ns


@contextmanager
def _arena_of(runtime: PipelinedRuntime, inputs: Iterable[np.ndarray], rows: int) -> Iterator[Arena]:
    """An arena with these rows, attached within the context."""
    fd = Arena.create(runtime.signature, rows)
    try:
        arena = Arena(fd, runtime.signature, rows)
    finally:
        os.close(fd)
    for array, given in zip(arena.inputs, inputs, strict=True):
        array[:] = given
    runtime.attach(arena)
    try:
        yield arena
    finally:
        runtime.detach(arena)


def full_batch(loaded: LoadedModel, runtime: Runtime) -> Callable[[], None]:
    """Return a function that runs the largest batch on one of the model's runtimes, on that runtime's thread.

    Args:
        loaded: The model, which takes rows of fixed shape.
        runtime: One of its runtimes.
    """

    def run() -> None:
        runtime.run(batch_inputs(runtime, loaded.max_batch_rows, loaded.sample))

    return run


def batch_inputs(runtime: Runtime, rows: int, sample: Mapping[str, np.ndarray] | None) -> list[Any]:
    """Return the inputs of a batch of made-up rows, or of the sample's, in the runtime's own buffers if it has any.

    Args:
        runtime: A runtime of a model whose signature takes `rows`.
        rows: How many.
        sample: Rows that the model is known to answer; None for zeros.
    """
    inputs: list[Any] = first_rows(runtime.signature.inputs, rows, sample)
    if isinstance(runtime, BufferedRuntime):
        for buffer, array in zip(runtime.buffers(), inputs, strict=True):
            buffer[:rows] = array
        inputs = [buffer[:rows] for buffer in runtime.buffers()]
    return inputs
