"""What TensorFlow is told and what its errors mean; TensorFlow itself is not imported."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.cuda_puppets import DOUBLES

from stoker.deployment import Device
from stoker.errors import InvalidInput, LoadFailed
from stoker.runtimes.base import OutOfMemory
from stoker.runtimes.tensorflow import SavedSignature, TensorFlowRuntime, import_tensorflow
from stoker.settings.choices import Acceleration


class _OpError(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _InvalidArgumentError(_OpError):
    pass


class _OutOfRangeError(_OpError):
    pass


class _ResourceExhaustedError(_OpError):
    pass


class _InternalError(_OpError):
    pass


def signature(error: Exception) -> SavedSignature:
    """A signature whose function raises this."""

    def function(**_: Any) -> Any:
        raise error

    errors = SimpleNamespace(
        InvalidArgumentError=_InvalidArgumentError,
        OutOfRangeError=_OutOfRangeError,
        ResourceExhaustedError=_ResourceExhaustedError,
    )
    made = SavedSignature.__new__(SavedSignature)
    made._tf = SimpleNamespace(errors=errors, constant=lambda array: array)
    made._function = function
    made.outputs = ()
    return made


MESSAGE = (
    "Graph execution error:\n\nDetected at node GatherV2 defined at (most recent call last):\n"
    '  File "/home/somebody/export.py", line 3, in call\n'
    "indices[0] = 9 is not in [0, 2)\n\t [[{{node GatherV2}}]] [Op:__inference_signature_wrapper_104]"
)


@pytest.mark.parametrize("kind", [_InvalidArgumentError, _OutOfRangeError])
def test_arguments_that_do_not_fit_are_the_callers_fault(kind: type[_OpError]) -> None:
    """The caller is told the reason, and not where in the exporter's code it is."""
    with pytest.raises(InvalidInput) as refused:
        signature(kind(MESSAGE)).run({"x": np.zeros(1)})
    assert str(refused.value) == "The model cannot take these tensors: indices[0] = 9 is not in [0, 2)"


def test_bytes_that_the_model_cannot_read_are_the_callers_fault() -> None:
    """TensorFlow quotes them in its error, and fails to make one of what is no text."""
    with pytest.raises(InvalidInput, match="cannot read their bytes"):
        signature(UnicodeDecodeError("utf-8", b"\x89PNG", 0, 1, "invalid start byte")).run({"x": np.zeros(1)})


def test_other_errors_are_the_models() -> None:
    """They go on as they are."""
    with pytest.raises(_InternalError):
        signature(_InternalError("a kernel failed")).run({"x": np.zeros(1)})


def test_a_gpu_without_memory_is_out_of_memory() -> None:
    """So that the worker tries the batch in parts."""
    with pytest.raises(OutOfMemory, match="OOM when allocating tensor"):
        signature(_ResourceExhaustedError("OOM when allocating tensor with shape[4]")).run({"x": np.zeros(1)})


class _Config:
    """`tensorflow.config`, as far as a GPU is set up; `calls` has what was set."""

    def __init__(self, gpus: list[str]) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.LogicalDeviceConfiguration = SimpleNamespace
        self.list_physical_devices = lambda kind: gpus
        self.set_visible_devices = self._noted("visible")
        self.set_logical_device_configuration = self._noted("logical")
        self.experimental = SimpleNamespace(
            set_memory_growth=self._noted("growth"), enable_tensor_float_32_execution=self._noted("tf32")
        )
        self.optimizer = SimpleNamespace(set_experimental_options=self._noted("optimizer"))
        self.threading = SimpleNamespace(get_intra_op_parallelism_threads=lambda: 2)

    def _noted(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


@pytest.mark.parametrize(
    ("acceleration", "calls"),
    [
        (None, [("growth", "first", True)]),
        (Acceleration(), [("growth", "first", True), ("tf32", True)]),
        (
            Acceleration(memory_mb=100, precision="fp32"),
            [("logical", "first", [SimpleNamespace(memory_limit=100)]), ("tf32", False)],
        ),
        (
            Acceleration(precision="fp16"),
            [("growth", "first", True), ("tf32", True), ("optimizer", {"auto_mixed_precision": True})],
        ),
    ],
)
def test_a_gpu_is_set_up_as_the_model_has_it(
    acceleration: Acceleration | None, calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of memory excludes growth; a script's TensorFlow keeps its own ways."""
    config = _Config(["first"])
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    import_tensorflow(Device("cuda", 1, "a GPU"), 2, acceleration)
    assert config.calls == [("visible", ["first"], "GPU"), *calls]


def test_a_script_has_all_gpus_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them grows its memory as it needs it; one that is missing is told."""
    device = Device("cuda", 0, "two GPUs", "GPU-a", (Device("cuda", 1, "a GPU", "GPU-b"),))
    config = _Config(["first", "second"])
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    import_tensorflow(device, 2)
    visible = ("visible", ["first", "second"], "GPU")
    assert config.calls == [visible, ("growth", "first", True), ("growth", "second", True)]
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=_Config(["first"])))
    with pytest.raises(LoadFailed, match=r"TensorFlow does not find cuda:0\+cuda:1"):
        import_tensorflow(device, 2)


def test_a_gpu_that_tensorflow_does_not_find_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on with the CPU."""
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=_Config([])))
    with pytest.raises(LoadFailed, match="TensorFlow does not find cuda:1"):
        import_tensorflow(Device("cuda", 1, "a GPU"), 2)


class _Rows:
    """A model of rows, y = 2 x, that counts how it was run; `factor` is what it compiles to."""

    def __init__(self, factor: float = 2) -> None:
        self.factor = factor
        self.ran: list[Any] = []

    def compile(self, rows: int) -> Any:
        if self.factor == 0:
            raise _InvalidArgumentError(
                "Detected unsupported operations when trying to compile graph: StringJoin"
            )
        return f"compiled for {rows}"

    def run(self, feeds: Any, compiled: Any = None) -> dict[str, np.ndarray]:
        self.ran.append(compiled)
        return {"y": feeds["x"] * np.float32(2 if compiled is None else self.factor)}


def test_batches_of_compiled_sizes_run_compiled() -> None:
    """Those of other sizes as before; a fork shares what was compiled."""
    model: Any = _Rows()
    runtime = TensorFlowRuntime(model, DOUBLES)
    runtime.compile("doubler", (1, 4))
    model.ran.clear()
    for each in (runtime, runtime.fork()):
        for rows in (1, 3, 4):
            each.run([np.ones((rows, 3), np.float32)])
    assert model.ran == ["compiled for 1", None, "compiled for 4"] * 2


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (3, "compiled with XLA its outputs differ by 0.5"),
        (0, "XLA cannot compile it for 1 rows: Detected unsupp"),
    ],
)
def test_model_that_xla_cannot_compile_is_refused(factor: float, reason: str) -> None:
    """A model that XLA cannot compile, or computes otherwise, fails to load."""
    model: Any = _Rows(factor)
    with pytest.raises(LoadFailed) as failed:
        TensorFlowRuntime(model, DOUBLES).compile("doubler", (1, 4))
    assert reason in str(failed.value)


def test_xla_without_sizes_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """On the CPU batches have any size unless `batch_buckets` says otherwise."""
    model: Any = _Rows()
    TensorFlowRuntime(model, DOUBLES).compile("doubler", ())
    assert "doubler: xla does nothing without batch_buckets" in caplog.text
    assert model.ran == []
