"""The throughput of ONNX Runtime without a server: rows per second and the time of each step, by batch size.

`python -m stoker_bench.gpu.ceiling MODEL --device cuda:0` measures in a process of its own, so that nothing of it is
left on the GPU, and writes JSON to stdout.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from stoker.errors import OperatorError
from stoker.gpu.confinement import enter_device
from stoker_bench.generators.load_generator import output_of
from stoker_bench.gpu.models import GpuModel
from stoker_bench.gpu.pinned_memory import pinned
from stoker_bench.networks import bert

BOUND = "bound"
FUSED = "fused"
NHWC: Final = {"prefer_nhwc": "1"}
GRAPH: Final = {"enable_cuda_graph": "1"}
WAYS: Final[dict[str, dict[str, str]]] = {
    BOUND: {},
    "nhwc": NHWC,
    "graph": GRAPH,
    "nhwc graph": NHWC | GRAPH,
    FUSED: GRAPH,
}
"""Ways of running a batch on a GPU, and the options of the CUDA provider that make them."""
WARM_UP_RUNS: Final = 3
START_S: Final = 240.0
"""Most time for importing, loading, and choosing algorithms for every batch size."""
DTYPES: Final = {
    "tensor(float)": np.float32,
    "tensor(uint8)": np.uint8,
    "tensor(int64)": np.int64,
}


@dataclass(frozen=True)
class BatchFigures:
    """One batch size, run in one way.

    Attributes:
        rows: Rows per batch.
        way: `bound` (inputs and outputs stay in place), `nhwc` (the same, images with the channels last), `graph`
            (captured as a CUDA graph), `nhwc graph`, or `fused` (a transformer with fused attention, in a session of
            this batch size, captured).
        rows_per_s: With inputs and outputs that stay on the device.
        copied_rows_per_s: With each batch copied to the device and its outputs back, one after the other.
        copy_in_ms: Median time of the copy to the device.
        compute_ms: Median time of the run.
        copy_out_ms: Median time of the copy back.
    """

    rows: int
    way: str
    rows_per_s: float
    copied_rows_per_s: float
    copy_in_ms: float
    compute_ms: float
    copy_out_ms: float


@dataclass(frozen=True)
class Ceiling:
    """The throughput of the runtime alone with one model.

    Attributes:
        batches: The figures of each batch size and way.
        failures: Failed measurements, and why.
    """

    batches: tuple[BatchFigures, ...]
    failures: tuple[str, ...] = ()

    @property
    def best(self) -> BatchFigures:
        """The batch size and way with most rows a second."""
        return max(self.batches, key=lambda batch: batch.rows_per_s)

    @property
    def rows_per_s(self) -> float:
        """The ceiling, with which figures of the server are compared."""
        return self.best.rows_per_s


def measure_ceiling(model: GpuModel, device: str, batches: Sequence[int], seconds: float) -> Ceiling:
    """Measure a model in a process of its own.

    Args:
        device: As for `stoker serve`: `cpu`, `cuda:N` or a UUID.
        batches: Batch sizes in rows.
        seconds: Duration of each batch size and way, once without and once with copies.

    Raises:
        GeneratorError: The process failed, as where the device cannot be used.
    """
    command = [sys.executable, "-m", "stoker_bench.gpu.ceiling", str(model.path), "--device", device]
    command += ["--precision", model.precision, "--seconds", str(seconds)]
    command += ["--batches", *map(str, batches)]
    if model.network == "bert":
        command.append("--transformer")
    output = output_of(command, START_S + seconds * 2 * len(WAYS) * len(batches))
    # ONNX Runtime prints what it likes before that.
    figures = orjson.loads(output.splitlines()[-1])
    return Ceiling(tuple(BatchFigures(**batch) for batch in figures["batches"]), tuple(figures["failures"]))


class _Bench:
    """One session whose input and output stay in place, for one batch size after the other.

    Args:
        model: The file, or a graph made of it.
        fixed_rows: The only batch size; None for any.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        kind: str,
        way: str,
        model: Path | bytes,
        fixed_rows: int | None = None,
    ) -> None:
        import onnxruntime

        self._onnxruntime = onnxruntime
        self._way = way
        # The process is confined to the one GPU.
        self._place = (kind, 0)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if fixed_rows is not None:
            options.add_free_dimension_override_by_name("rows", fixed_rows)
        # Else ONNX Runtime would go on with the CPU where it cannot capture a graph.
        self._session = onnxruntime.InferenceSession(
            model, options, providers=_providers(kind, args, way), enable_fallback=0
        )
        if kind == "cuda" and "CUDAExecutionProvider" not in self._session.get_providers():
            raise RuntimeError(f"ONNX Runtime did not use {args.device}; `stoker doctor` says why")

    def measure(self, rows: int, seconds: float) -> BatchFigures:
        """Measure one batch size."""
        ort = self._onnxruntime
        tensor, output = self._session.get_inputs()[0], self._session.get_outputs()[0]
        images = _random(rows, tuple(tensor.shape[1:]), DTYPES[tensor.type])
        shape = [rows, *output.shape[1:]]
        # A captured graph reads and writes these places at every replay.
        source = ort.OrtValue.ortvalue_from_numpy(images, *self._place)
        target = ort.OrtValue.ortvalue_from_shape_and_type(shape, DTYPES[output.type], *self._place)
        binding = self._session.io_binding()
        binding.bind_ortvalue_input(tensor.name, source)
        binding.bind_ortvalue_output(output.name, target)
        run_options = ort.RunOptions()
        if GRAPH.items() <= WAYS[self._way].items():
            run_options.add_run_config_entry("gpu_graph_id", str(rows))

        def compute() -> None:
            # Returns once the device has finished.
            self._session.run_with_iobinding(binding, run_options)

        for _ in range(WARM_UP_RUNS):
            compute()
        placed_s = _repeat(compute, seconds)
        if self._place[0] == "cpu":
            # The CPU reads its inputs in place: there is nothing to copy.
            return _figures(rows, self._way, placed_s, [placed_s])
        with pinned(images) as host:
            sent = images if host is None else host
            steps: list[Callable[[], object]] = [
                lambda: source.update_inplace(sent),
                compute,
                target.numpy,
            ]
            return _figures(rows, self._way, placed_s, _repeat_steps(steps, seconds))


def _figures(
    rows: int, way: str, placed_s: Sequence[float], steps_s: Sequence[Sequence[float]]
) -> BatchFigures:
    """Make figures of the seconds of each run in place, and of each step (all, or computing alone) of each run."""
    medians_ms = [statistics.median(step) * 1e3 for step in steps_s]
    copy_in_ms, compute_ms, copy_out_ms = medians_ms if len(medians_ms) > 1 else (0.0, medians_ms[0], 0.0)
    return BatchFigures(
        rows,
        way,
        rows * len(placed_s) / sum(placed_s),
        rows * len(steps_s[0]) / sum(map(sum, steps_s)),
        copy_in_ms,
        compute_ms,
        copy_out_ms,
    )


def _repeat(work: Callable[[], object], seconds: float) -> list[float]:
    return _repeat_steps([work], seconds)[0]


def _repeat_steps(steps: Sequence[Callable[[], object]], seconds: float) -> list[list[float]]:
    """Do the steps in turn for a while, at least once; return the seconds of each, step by step."""
    taken_s: list[list[float]] = [[] for _ in steps]
    now_s = time.perf_counter()
    end_s = now_s + seconds
    while not taken_s[0] or now_s < end_s:
        for step, each_s in zip(steps, taken_s, strict=True):
            began_s = now_s
            step()
            now_s = time.perf_counter()
            each_s.append(now_s - began_s)
    return taken_s


def _random(rows: int, row_shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    random = np.random.default_rng(11)
    if dtype is np.uint8:
        return random.integers(0, 256, (rows, *row_shape), np.uint8)
    if dtype is np.int64:
        return random.integers(0, bert.VOCABULARY, (rows, *row_shape))
    return random.random((rows, *row_shape), np.float32).astype(dtype)


def _providers(kind: str, args: argparse.Namespace, way: str) -> list[Any]:
    if kind == "cpu":
        return ["CPUExecutionProvider"]
    cuda = {"device_id": "0", "use_tf32": "0" if args.precision == "fp32" else "1"}
    # The default finds nothing faster, and would plan the convolutions of all batch sizes for minutes.
    cuda |= {"cudnn_conv_algo_search": "HEURISTIC"}
    cuda |= WAYS[way]
    return [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]


def _graph(args: argparse.Namespace, way: str) -> Path | bytes:
    """Return what is measured: the file, or what the server would make of a transformer."""
    # Not before the process is confined to its GPU.
    from stoker.runtimes.onnx.fusion import fuse_graph
    from stoker.runtimes.onnx.precision import convert
    from stoker.runtimes.precision import is_converted

    if not args.transformer:
        path: Path = args.model
        return path
    model: Path | bytes | None = args.model
    if way == FUSED:
        model = fuse_graph(args.model, _open_on_cpu)
    if model is None:
        raise ValueError("its attention has no form that can be fused")
    return convert(args.model.name, model, args.precision) if is_converted(args.precision) else model


def _open_on_cpu(model: bytes | Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def _measure_all(args: argparse.Namespace) -> dict[str, Any]:
    try:
        device, _ = enter_device(args.device, {"onnx"})
    except OperatorError as error:
        raise SystemExit(str(error)) from error
    if args.transformer:
        ways = [BOUND, FUSED]
    else:
        ways = [way for way in WAYS if way != FUSED] if device.kind == "cuda" else [BOUND]
    batches: list[BatchFigures] = []
    failures = []
    for way in ways:
        try:
            model = _graph(args, way)
            if way == FUSED:
                for rows in args.batches:
                    bench = _Bench(args, device.kind, way, model, fixed_rows=rows)
                    batches.append(bench.measure(rows, args.seconds))
            else:
                bench = _Bench(args, device.kind, way, model)
                batches.extend(bench.measure(rows, args.seconds) for rows in args.batches)
        except Exception as error:  # noqa: BLE001, one way that the provider refuses leaves the other
            failures.append(f"{way}: {error}")
    if not batches:
        raise SystemExit("; ".join(failures))
    return {"batches": list(map(asdict, batches)), "failures": failures}


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="ONNX file with one input and one output")
    parser.add_argument("--device", required=True, help="cpu or cuda:N")
    parser.add_argument("--precision", default="fp16", help="fp32 turns TF32 off")
    parser.add_argument("--transformer", action="store_true", help="convert it, and fuse its attention")
    parser.add_argument("--batches", type=int, nargs="+", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    print(orjson.dumps(_measure_all(parser.parse_args())).decode())


if __name__ == "__main__":
    main()
