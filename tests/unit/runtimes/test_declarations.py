"""Tensors that the configuration of another server declares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.tiny_models import write_doubler

from stoker.deployment import Declaration, DeclaredTensor, Deployment, Device
from stoker.errors import LoadFailed
from stoker.runtimes.declarations import apply_declaration
from stoker.runtimes.onnx.loading import load_onnx
from stoker.runtimes.packed import Feeds
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.packed import pack, unpack

CPU = Device("cpu", 0, "CPU")
TENSORS = ModelTensors(
    (TensorInfo("x", "float32", (-1, -1, 3)), TensorInfo("n", "int64", (-1,))),
    (TensorInfo("y", "float32", (-1, 6)), TensorInfo("z", "int64", (-1,))),
    True,
)


def run(feeds: Feeds) -> Feeds:
    """Return six numbers a row of two times three, and `n` unchanged."""
    assert feeds["n"].ndim == 1
    return {"y": feeds["x"].reshape(-1, 6), "z": feeds["n"]}


def declaration(*inputs: DeclaredTensor, outputs: tuple[DeclaredTensor, ...] = ()) -> Declaration:
    return Declaration("config.pbtxt of net", inputs, outputs)


X = DeclaredTensor("x", "float32", (-1, 2, 3))
N = DeclaredTensor("n", "int64", (-1, 1), (-1,))


def test_callers_see_the_declared_tensors() -> None:
    """Declared sizes fix free ones, callers see their shapes, and outputs that are not declared are left out."""
    outputs = (DeclaredTensor("y", "float32", (-1, 3, 2), (-1, 6)),)
    run_declared, tensors = apply_declaration(declaration(X, N, outputs=outputs), run, TENSORS)
    assert tensors.inputs == (TensorInfo("x", "float32", (-1, 2, 3)), TensorInfo("n", "int64", (-1, 1)))
    assert tensors.outputs == (TensorInfo("y", "float32", (-1, 3, 2)),)
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    results = run_declared({"x": x, "n": np.zeros((2, 1), np.int64)})
    assert list(results) == ["y"]
    assert np.array_equal(results["y"], x.reshape(2, 3, 2))


def test_output_has_the_declared_labels() -> None:
    """Labels are for classification; an output of JSON objects keeps the model's own."""
    named = DeclaredTensor("y", "float32", (-1, 6), labels=("cat", "dog"))
    _, tensors = apply_declaration(declaration(outputs=(named,)), run, TENSORS)
    assert tensors.outputs[0].labels == ("cat", "dog")
    own = TensorInfo("y", "float32", (-1, 6), labels=("a", "b"), as_objects=True)
    _, kept = apply_declaration(
        declaration(outputs=(named,)), run, ModelTensors(TENSORS.inputs, (own,), True)
    )
    assert kept.outputs == (own,)


def test_model_without_declared_tensors_is_unchanged() -> None:
    """There is no declaration, or it has no tensors."""
    for empty in (None, declaration()):
        assert apply_declaration(empty, run, TENSORS) == (run, TENSORS)


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ((X, DeclaredTensor("m", "int64", (-1,))), "the model has no input 'm'; its inputs are x, n"),
        ((X,), "the model's input 'n' is missing there"),
        ((X, DeclaredTensor("n", "int32", (-1,))), r"the input n int32\[\?\] is n int64\[\?\] in the model"),
        (
            (N, DeclaredTensor("x", "float32", (-1, 2, 4))),
            r"the input x float32\[\?,2,4\] is x float32\[\?,\?,3\]",
        ),
        ((X, DeclaredTensor("n", "int64", (-1, 1))), r"the input n int64\[\?,1\] is n int64\[\?\]"),
    ],
)
def test_model_that_differs_from_its_declaration_is_refused(
    inputs: tuple[DeclaredTensor, ...], problem: str
) -> None:
    """Names, types and sizes are compared; the message shows both tensors."""
    with pytest.raises(LoadFailed, match=f"config.pbtxt of net: {problem}"):
        apply_declaration(declaration(*inputs), run, TENSORS)


def deployment(path: Path, declared: Declaration) -> Deployment:
    return Deployment("net", 1, "onnx", path, path.parent, 8, 1 << 20, declaration=declared)


def test_a_first_axis_that_is_no_batch_axis_is_not_batched(tmp_path: Path) -> None:
    """`max_batch_size: 0` declares it, although the model's own sizes allow batches."""
    path = write_doubler(tmp_path / "net.onnx")
    runtime = load_onnx(deployment(path, Declaration("config", batched=False)), CPU, 1)
    assert runtime.signature.takes == "tensors"
    isolation = runtime.signature.isolation
    assert isolation is not None
    assert (isolation.batched, isolation.how) == (False, "declared")


def test_a_reshaped_model_is_batched_in_its_callers_shape(tmp_path: Path) -> None:
    """Two requests of two times two numbers are one batch of four numbers a row, and the answers are reshaped."""
    path = write_doubler(tmp_path / "net.onnx")
    tensors = load_onnx(deployment(path, Declaration("config")), CPU, 1).signature
    (x,), (y,) = tensors.inputs, tensors.outputs
    square = (-1, 2, 2)
    declared = Declaration(
        "config",
        (DeclaredTensor(x.name, x.dtype, square, (-1, 4)),),
        (DeclaredTensor(y.name, y.dtype, square, (-1, 4)),),
        True,
    )
    runtime = load_onnx(deployment(path, declared), CPU, 1)
    assert runtime.signature.tensors is not None
    assert (runtime.signature.tensors.batched, runtime.signature.tensors.inputs[0].shape) == (True, square)
    rows = [np.full((1, 2, 2), number, np.float32) for number in (1, 2)]
    (answers,) = runtime.run([[pack({x.name: row}) for row in rows]])
    for row, answer in zip(rows, answers, strict=True):
        assert np.array_equal(unpack(bytes(answer))[y.name], 2 * row)
