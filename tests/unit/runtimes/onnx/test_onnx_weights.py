"""Weights in memory give the answers of the file, bit for bit."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.runtimes.onnx import weights as onnx_weights
from stoker.runtimes.onnx.sessions import OnnxSessions
from stoker.runtimes.onnx.weights import separate_weights

DICE = np.random.default_rng(1)
SIZE = 160
CPU = Device("cpu", 0, "the CPU")


def weight(name: str, *shape: int, dtype: str = "f4") -> onnx.TensorProto:
    return numpy_helper.from_array((DICE.standard_normal(shape) / 10).astype(dtype), name)


def node(operator: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], **attributes)


def write(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto],
    *sizes: int,
    as_inputs: bool = False,
) -> Path:
    """Write a model from `x[rows, *sizes]` to `y`."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", *sizes])]
    if as_inputs:
        inputs += [helper.make_tensor_value_info(one.name, one.data_type, list(one.dims)) for one in weights]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "model", inputs, [output], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def convolutions(path: Path) -> Path:
    """ONNX Runtime folds the normalisation into the weights and changes their layout."""
    nodes = [
        node("Conv", "x w b", "c", pads=[1] * 4),
        node("BatchNormalization", "c s b m v", "n"),
        node("Relu", "n", "r"),
        node("Conv", "r u", "y", pads=[1] * 4),
    ]
    vectors = [weight(name, 64) for name in "bsm"]
    variance = numpy_helper.from_array(np.abs(DICE.standard_normal(64)).astype("f4"), "v")
    return write(
        path, nodes, [weight("w", 64, 32, 3, 3), *vectors, variance, weight("u", 32, 64, 3, 3)], 32, 6, 6
    )


def products(path: Path) -> Path:
    """ONNX Runtime fuses the sum and packs the weights; one weight has two uses."""
    nodes = [node("MatMul", "x w", "a"), node("Add", "a b", "c"), node("MatMul", "c w", "y")]
    return write(path, nodes, [weight("w", SIZE, SIZE), weight("b", SIZE)], SIZE)


def folded(path: Path) -> Path:
    """ONNX Runtime computes a weight from others, some of them of half precision."""
    nodes = [
        node("Transpose", "w", "t", perm=[1, 0]),
        node("Cast", "h", "f", to=TensorProto.FLOAT),
        node("Add", "t f", "sum"),
        node("MatMul", "x sum", "y"),
    ]
    return write(path, nodes, [weight("w", 240, SIZE), weight("h", SIZE, 240, dtype="f2")], SIZE)


def brain_floats(path: Path) -> Path:
    """A type that numpy does not have stays in the graph."""
    bits = (DICE.integers(0, 1 << 16, 40_000) & 0x3FFF).astype("u2")
    stored = helper.make_tensor("w", TensorProto.BFLOAT16, [200, 200], bits.tobytes(), raw=True)
    nodes = [node("Cast", "w", "f", to=1), node("MatMul", "x f", "h"), node("MatMul", "h u", "y")]
    return write(path, nodes, [stored, weight("u", 200, 200)], 200)


def looked_up(dtype: str) -> Callable[[Path], Path]:
    """Rows of a table of a type, which is large enough for a huge page."""

    def write_table(path: Path) -> Path:
        table = numpy_helper.from_array(
            DICE.integers(0, 2, ((9 << 18) // np.dtype(dtype).itemsize, 1)).astype(dtype), "w"
        )
        nodes = [node("Cast", "x", "i", to=TensorProto.INT64), node("Gather", "w i", "g")]
        return write(path, [*nodes, node("Cast", "g", "y", to=TensorProto.FLOAT)], [table], 1)

    return write_table


def behind_a_link(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """Kubernetes mounts files so, and clients of model hubs store them so."""

    def link(path: Path) -> Path:
        folder = path.parent / "blobs"
        folder.mkdir()
        path.symlink_to(make(folder / "8c17"))
        return path

    return link


def integers(path: Path) -> Path:
    table = numpy_helper.from_array(DICE.integers(-127, 127, (300, 300)).astype("i1"), "w")
    scale, zero = (
        numpy_helper.from_array(np.array(value), name)
        for value, name in ((np.float32(0.1), "s"), (np.int8(3), "z"))
    )
    nodes = [node("DequantizeLinear", "w s z", "f"), node("MatMul", "x f", "y")]
    return write(path, nodes, [table, scale, zero], 300)


def overridable(path: Path) -> Path:
    """Callers could send other weights, so nothing is folded."""
    return write(path, [node("MatMul", "x w", "y")], [weight("w", SIZE, SIZE)], SIZE, as_inputs=True)


def in_branches(path: Path) -> Path:
    """One branch uses the weights of the model, the other has its own."""
    branches = [
        helper.make_graph(
            [node("MatMul", f"x {name}", "o")], name, [], [helper.make_tensor_value_info("o", 1, None)], own
        )
        for name, own in (("w", []), ("u", [weight("u", SIZE, SIZE)]))
    ]
    nodes = [
        node("ReduceSum", "x", "sum", keepdims=0),
        node("Greater", "sum zero", "is"),
        node("If", "is", "y", then_branch=branches[0], else_branch=branches[1]),
    ]
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    return write(path, nodes, [weight("w", SIZE, SIZE), zero], SIZE)


def unused(path: Path) -> Path:
    """ONNX Runtime refuses weights that it has removed; then it reads the file."""
    return write(path, [node("MatMul", "x w", "y")], [weight("w", SIZE, SIZE), weight("u", SIZE, SIZE)], SIZE)


def open_on_cpu(path: Path) -> onnxruntime.InferenceSession:
    deployment = Deployment("model", 1, "onnx", path, path.parent, 8, 1024)
    return OnnxSessions(deployment, CPU, 1, path).open_on_cpu(path)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (convolutions, "wu"),
        (products, "w"),
        (folded, "wh"),
        (brain_floats, "u"),
        (integers, "w"),
        (overridable, "w"),
        (in_branches, "w"),
        (unused, "wu"),
        *(
            (looked_up(dtype), "w")
            for dtype in ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
        ),
    ],
)
def test_separate_weights_change_no_bit(make: Any, names: str, tmp_path: Path) -> None:
    """The same graph is optimised with the same numbers."""
    path = make(tmp_path / "model.onnx")
    separate = separate_weights(path)
    assert separate is not None
    assert [*separate.arrays] == [*names]
    assert len(separate.graph) < path.stat().st_size / 2 or make in (in_branches, brain_floats)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    reference = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session = open_on_cpu(path)
    assert [value.name for value in session.get_inputs()] == [value.name for value in reference.get_inputs()]
    for sign in (1, -1):
        x = sign * np.abs(DICE.standard_normal((3, *reference.get_inputs()[0].shape[1:])).astype("f4"))
        assert session.run(None, {"x": x})[0].tobytes() == reference.run(None, {"x": x})[0].tobytes()


@pytest.mark.parametrize("make", [convolutions, products, folded, looked_up("f4")])
def test_sessions_outlive_the_file(make: Any, tmp_path: Path) -> None:
    """A file that is truncated, or memory that is freed and used again, changes no answer."""
    path = make(tmp_path / "model.onnx")
    session = open_on_cpu(path)
    x = np.ones((2, *session.get_inputs()[0].shape[1:]), np.float32)
    (before,) = session.run(None, {"x": x})
    path.write_bytes(b"")
    _ = [np.full((SIZE, SIZE), np.nan, np.float32) for _ in range(50)]
    assert np.array_equal(session.run(None, {"x": x})[0], before)


class Memory(mmap.mmap):
    """Memory that can be referred to weakly."""


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(
    ("make", "is_kept"),
    [
        (convolutions, False),
        (products, False),
        (folded, False),
        (looked_up("f4"), True),
        (behind_a_link(looked_up("f4")), True),
    ],
)
def test_only_memory_that_a_session_uses_stays(
    make: Any, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that it has packed anew or folded go at once, the others with the session, and without a collection."""
    path = make(tmp_path / "model.onnx")
    taken: list[weakref.ref[Memory]] = []

    def take(size_bytes: int) -> memoryview:
        memory = Memory(-1, size_bytes)
        taken.append(weakref.ref(memory))
        return memoryview(memory)

    monkeypatch.setattr(onnx_weights, "_allocate", take)
    session = open_on_cpu(path)
    assert taken
    assert {memory() is not None for memory in taken} == {is_kept}
    del session
    assert not any(memory() for memory in taken)


def test_older_versions_of_onnx_runtime_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot own memory by DLPack."""
    path = looked_up("f4")(tmp_path / "model.onnx")
    x = np.ones((2, 1), np.float32)
    (in_place,) = open_on_cpu(path).run(None, {"x": x})
    monkeypatch.delattr(onnxruntime.OrtValue, "from_dlpack", raising=False)
    separate = separate_weights(path)
    assert separate is not None
    assert len(separate.uses) == 1
    assert np.array_equal(open_on_cpu(path).run(None, {"x": x})[0], in_place)


def test_small_and_foreign_weights_are_not_separated(tmp_path: Path) -> None:
    """ONNX Runtime reads small weights, weights in lists of numbers or other files, and files that are no models."""
    path = tmp_path / "model.onnx"
    assert separate_weights(write(path, [node("Mul", "x w", "y")], [weight("w", 1)], 1)) is None
    listed = helper.make_tensor("w", TensorProto.FLOAT, [SIZE, SIZE], [0.5] * SIZE**2)
    assert separate_weights(write(path, [node("MatMul", "x w", "y")], [listed], SIZE)) is None
    onnx.save(
        onnx.load(products(path)), path, save_as_external_data=True, location="weights", size_threshold=0
    )
    assert separate_weights(path) is None
    assert open_on_cpu(path).run(None, {"x": np.ones((1, SIZE), np.float32)})
    for content in (b"", b"no model", products(path).read_bytes()[:-1000]):
        path.write_bytes(content)
        assert separate_weights(path) is None
        with pytest.raises(LoadFailed, match="ONNX Runtime cannot load"):
            open_on_cpu(path)
    assert separate_weights(tmp_path / "missing.onnx") is None


def test_weights_of_a_wrong_shape_stay_in_the_graph(tmp_path: Path) -> None:
    """ONNX Runtime reports their fault."""
    wrong = weight("w", SIZE, SIZE)
    wrong.dims[0] = SIZE + 1
    path = write(tmp_path / "model.onnx", [node("MatMul", "x w", "y")], [wrong], SIZE)
    assert separate_weights(path) is None
    with pytest.raises(LoadFailed, match="ONNX Runtime cannot load"):
        open_on_cpu(path)
