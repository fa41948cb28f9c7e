"""Loading a deployment in a device process: load, warm up, ready."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy as np

from stoker.deployment import Deployment, Device, KeptFindings
from stoker.device.batch_sizes import BatchSizes, timed_first, with_batch_sizes
from stoker.device.bucket_choice import candidate_sizes, choose_buckets, gains_by_growing
from stoker.device.canary import Canary, first_row
from stoker.device.first_batches import TIMED_RUNS, is_pipelined, time_batches, time_full_batch, warm_up
from stoker.device.kept_sizes import KeepSizes, read_sizes, write_sizes
from stoker.device.loaded_model import LoadedModel
from stoker.device.runtime_loading import load_runtime
from stoker.errors import LoadFailed
from stoker.runtimes.base import (
    GPU_INSTANCES,
    ChosenRuntime,
    ForkingRuntime,
    OutOfMemory,
    RestoringRuntime,
    Runtime,
    SizedRuntime,
    TokenRuntime,
    powers_of_two,
)
from stoker.samples.sample import find_sample_feeds
from stoker.tensors import Signature

logger = logging.getLogger(__name__)

_known_batches: Final = KeptFindings[tuple[int, float]]()
"""The most rows of a batch, and the seconds of such a batch."""


def load(
    deployment: Deployment,
    device: Device,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    *,
    adds_later: bool = False,
) -> LoadedModel:
    """Load a deployment and run its first batches, one of each size, so that no request has to wait for that.

    A model on demand whose file this process has loaded before runs one row on a CPU. On a GPU without
    `batch_buckets` the sizes that pay are chosen by timing them.

    Args:
        adds_later: Whether further sizes may be prepared and timed while it serves, where a runtime can do that.

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
    first = _FirstBatches(most, sizes)
    if signature.takes == "rows":
        if chooses and adds_later and is_pipelined(runtime) and isinstance(runtime, SizedRuntime):
            first = _time_first_sizes(runtime, deployment, device, most, sample, clock_ns)
        elif chooses:
            first = _run_chosen_sizes(runtime, deployment, most, sample, clock_ns)
        else:
            most, full_batch_s = _run_first_batches(runtime, deployment, device, most, sizes, sample)
            first = _FirstBatches(most, sizes, full_batch_s=full_batch_s)
        if isinstance(runtime, RestoringRuntime):
            runtime.restore()
    if device.kind == "cuda" and isinstance(runtime, ChosenRuntime) and runtime.choice:
        times_ns = first.times_ns or _times_ns(runtime, first.sizes, first.most_rows, sample, clock_ns)
        _log_choice(runtime, deployment.name, times_ns)
    return LoadedModel(
        runtime,
        loaded - begun,
        time.perf_counter() - loaded,
        first.most_rows,
        first.sizes,
        _instances(deployment, device, runtime),
        _canary(deployment, device, runtime, first.sizes, sample),
        sample,
        first.full_batch_s,
        deployment.warm_up_runs,
        first.later_sizes,
        first.keep_sizes,
    )


class _FirstBatches(NamedTuple):
    """The result of the first batches; see `LoadedModel`. `times_ns` has the times of chosen sizes."""

    most_rows: int
    sizes: BatchSizes
    times_ns: Mapping[int, int] = {}
    full_batch_s: float = 0.0
    later_sizes: tuple[int, ...] = ()
    keep_sizes: KeepSizes | None = None


def _time_first_sizes(
    runtime: SizedRuntime,
    deployment: Deployment,
    device: Device,
    most: int,
    sample: Mapping[str, np.ndarray] | None,
    clock_ns: Callable[[], int],
) -> _FirstBatches:
    """Time the sizes that the runtime has from the beginning; the others are prepared while it serves."""
    known = read_sizes(deployment, device)
    later_sizes = known or candidate_sizes(most)
    sizes = BatchSizes(tuple(runtime.sizes), chosen=True)
    times_ns = _times_ns(runtime, sizes, later_sizes[-1], sample, clock_ns)
    keep_sizes = None if known else partial(write_sizes, deployment, device)
    return _FirstBatches(later_sizes[-1], sizes, times_ns, later_sizes=later_sizes, keep_sizes=keep_sizes)


def _run_chosen_sizes(
    runtime: Runtime,
    deployment: Deployment,
    most: int,
    sample: Mapping[str, np.ndarray] | None,
    clock_ns: Callable[[], int],
) -> _FirstBatches:
    """Choose the sizes that pay, and time a full batch."""
    times_ns = _choose_sizes(runtime, deployment, most, sample, clock_ns)
    sizes = BatchSizes(tuple(times_ns), chosen=True)
    full_batch_s = time_full_batch(runtime, deployment.name, sizes.buckets[-1], sample)
    return _FirstBatches(sizes.buckets[-1], sizes, times_ns, full_batch_s)


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
        most = warm_up(runtime, deployment.name, most, sizes, sample, deployment.warm_up_runs)
        times_ns = {
            # Other work of the machine only lengthens a run.
            size: max(1, min(time_batches(runtime, size, sample, TIMED_RUNS, clock_ns)))
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
    times_ns = {size: max(1, min(time_batches(runtime, size, sample, TIMED_RUNS))) for size in runtime.sizes}
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
            times_ns[size] = min(time_batches(runtime, size, sample, TIMED_RUNS, clock_ns))
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
    # Models of texts have nothing of their own in a fork that would need it.
    if loaded.signature.takes == "rows" and not isinstance(runtime, TokenRuntime):
        most = warm_up(runtime, name, most, loaded.sizes, loaded.sample, loaded.warm_up_runs)
        if isinstance(runtime, RestoringRuntime):
            runtime.restore()
    warm_up_s = loaded.warm_up_s + time.perf_counter() - begun
    return runtime, msgspec.structs.replace(loaded, warm_up_s=warm_up_s, max_batch_rows=most)


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
    if signature.callers is not None and signature.isolation and not signature.isolation.batched:
        return 1
    if signature.tensors is not None:
        # Requests may have rows, and still run one after the other.
        alone = not signature.signatures and signature.isolation and not signature.isolation.batched
        if alone or not any(named.tensors.batched for named in signature.named):
            return 1
    return deployment.max_batch_rows


def _instances(deployment: Deployment, device: Device, runtime: Runtime) -> int:
    if is_pipelined(runtime):
        # It has the batches in flight that `instances` asks for.
        return 1
    forks = isinstance(runtime, ForkingRuntime)
    if deployment.instances is None:
        # A script need not be safe for several threads.
        several = forks and device.kind == "cuda" and deployment.framework != "script"
        if several:
            return GPU_INSTANCES
        return runtime.instances if isinstance(runtime, TokenRuntime) else 1
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
        warm_up(runtime, name, sizes.filled(1), sizes, sample, runs)
        return known
    most = warm_up(runtime, name, max_batch_rows, sizes, sample, runs)
    full_batch_s = time_full_batch(runtime, name, most, sample)
    _known_batches.keep(key, (most, full_batch_s))
    return most, full_batch_s
