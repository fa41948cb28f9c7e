"""ONNX models by ONNX Runtime, on tiny models that are built here."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from tests.tiny_models import write_picky
from tests.zoo import ZOO

from stoker.deployment import Deployment, Device
from stoker.device.loading import load
from stoker.errors import DeviceUnavailable, InvalidInput, LoadFailed
from stoker.runtimes.base import ForkingRuntime, OutOfMemory, RowFailure, Runtime
from stoker.runtimes.onnx.loading import load_onnx
from stoker.runtimes.onnx.sessions import OnnxSessions
from stoker.tensors import ModelTensors, TensorInfo, TensorSpec
from stoker.wire.packed import pack, unpack
from stoker.wire.tensor_json import as_tensor

ONE = {"one": np.array(1, np.float32)}
CPU = Device("cpu", 0, "a processor")
FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
Value = tuple[str, int, Sequence[int | str | None] | None]
"""Name, element type and shape of an input or output."""


def write(
    folder: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[Value],
    outputs: list[Value],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 13,
) -> Path:
    """Write a model of these operators."""
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    # The oldest versions that hold these operators, so that every supported ONNX Runtime loads the file.
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7 if opset < 15 else 9
    )
    path = folder / "tiny.onnx"
    onnx.save(model, path)
    return path


def deployment(path: Path, max_batch_rows: int = 8) -> Deployment:
    """Return a deployment of the file."""
    return Deployment("tiny", 1, "onnx", path, path.parent, max_batch_rows, 1000)


def runtime(path: Path) -> Runtime:
    """Load the file on the CPU."""
    return load_onnx(deployment(path), CPU, 1)


def score(loaded: Runtime, *requests: dict[str, np.ndarray]) -> list[dict[str, np.ndarray] | BaseException]:
    """Return the answers of a model of packed requests to one batch."""
    assert loaded.signature.takes == "tensors"
    (answers,) = loaded.run([[pack(feeds) for feeds in requests]])
    return [answer.error if isinstance(answer, RowFailure) else unpack(answer) for answer in answers]


def refusal(path: Path) -> str:
    """Return the message of the refusal of a file."""
    with pytest.raises(LoadFailed) as refused:
        runtime(path)
    assert str(path) in str(refused.value)
    return str(refused.value)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node; names of values are separated by spaces."""
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def one_operator(folder: Path, operator: str, taken: Value, given: Value, **attributes: Any) -> Path:
    """Return a model of one operator from `x` to `y`."""
    return write(folder, [node(operator, "x", "y", **attributes)], [taken], [given])


@pytest.mark.parametrize("batch", ["rows", "N", None])
def test_a_dynamic_batch_axis_is_served(tmp_path: Path, batch: str | None) -> None:
    """The axis is no part of the row, with or without a name."""
    path = one_operator(tmp_path, "Neg", ("x", FLOAT, [batch, 2, 3]), ("y", FLOAT, [batch, 2, 3]))
    loaded = runtime(path)
    assert loaded.signature.inputs == (TensorSpec("x", "float32", (2, 3)),)
    assert loaded.signature.outputs == (TensorSpec("y", "float32", (2, 3)),)
    for rows in (1, 5):
        data = np.arange(rows * 6, dtype=np.float32).reshape(rows, 2, 3)
        (output,) = loaded.run([data])
        assert output.tolist() == (-data).tolist()


@pytest.mark.parametrize(("short_s", "threads", "opened"), [(60.0, 4, [4, 1]), (0.0, 4, [4]), (60.0, 1, [1])])
def test_model_of_short_batches_has_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_s: float, threads: int, opened: list[int]
) -> None:
    """Handing an operation to other threads costs it more than they save; others have all threads."""
    path = one_operator(tmp_path, "Neg", ("x", FLOAT, ["rows", 2]), ("y", FLOAT, ["rows", 2]))
    found, real = [], OnnxSessions.open

    def open_session(sessions: OnnxSessions) -> onnxruntime.InferenceSession:
        found.append(sessions.threads)
        return real(sessions)

    monkeypatch.setattr("stoker.runtimes.onnx.loading._SHORT_S", short_s)
    monkeypatch.setattr(OnnxSessions, "open", open_session)
    loaded = load_onnx(deployment(path), CPU, threads)
    assert found == opened
    assert loaded.run([np.ones((1, 2), np.float32)])[0].tolist() == [[-1, -1]]


def test_inputs_and_outputs_keep_their_order_and_dtypes(tmp_path: Path) -> None:
    """Two inputs, one of them a scalar per row, and two outputs of other dtypes."""
    nodes = [
        node("Cast", "k", "k_float", to=FLOAT),
        node("Unsqueeze", "k_float one", "k_column"),
        node("Add", "x k_column", "sum"),
        node("Neg", "k", "minus"),
    ]
    path = write(
        tmp_path,
        nodes,
        [("x", FLOAT, ["n", 2]), ("k", INT64, ["n"])],
        [("sum", FLOAT, ["n", 2]), ("minus", INT64, ["n"])],
        {"one": np.array([1], np.int64)},
    )
    loaded = runtime(path)
    assert loaded.signature.inputs == (TensorSpec("x", "float32", (2,)), TensorSpec("k", "int64", ()))
    assert loaded.signature.outputs == (TensorSpec("sum", "float32", (2,)), TensorSpec("minus", "int64", ()))
    total, minus = loaded.run([np.array([[1, 2], [3, 4]], np.float32), np.array([10, 2**60])])
    assert total[0].tolist() == [11, 12]
    assert minus.tolist() == [-10, -(2**60)]


@pytest.mark.parametrize(
    ("operator", "element", "dtype", "data", "expected"),
    [
        ("Not", BOOL, "bool", [[True, False]], [[False, True]]),
        ("Neg", INT64, "int64", [[5, -(2**62)]], [[-5, 2**62]]),
        ("Neg", TensorProto.INT32, "int32", [[5, -7]], [[-5, 7]]),
        ("Neg", TensorProto.INT8, "int8", [[5, -7]], [[-5, 7]]),
        ("Neg", TensorProto.FLOAT16, "float16", [[0.5, 2]], [[-0.5, -2]]),
        ("Neg", TensorProto.DOUBLE, "float64", [[0.1, 2]], [[-0.1, -2]]),
        ("Identity", TensorProto.UINT8, "uint8", [[0, 255]], [[0, 255]]),
        ("Identity", TensorProto.UINT64, "uint64", [[0, 2**64 - 1]], [[0, 2**64 - 1]]),
    ],
)
def test_dtypes_are_numpys(
    tmp_path: Path, operator: str, element: int, dtype: str, data: list[Any], expected: list[Any]
) -> None:
    """tensor(int64) of ONNX is int64, and so on for each type of numbers."""
    loaded = runtime(one_operator(tmp_path, operator, ("x", element, ["n", 2]), ("y", element, ["n", 2])))
    assert [spec.dtype for spec in (*loaded.signature.inputs, *loaded.signature.outputs)] == [dtype, dtype]
    (output,) = loaded.run([np.array(data, dtype)])
    assert output.tolist() == expected


def test_an_output_of_unknown_shape_is_learned(tmp_path: Path) -> None:
    """Exporters often leave it out: rows of zeros show the rows of the answer."""
    path = write(
        tmp_path,
        [node("Reshape", "x shape", "y")],
        [("x", FLOAT, ["n", 2, 6])],
        [("y", FLOAT, ["n", "a", "b"])],
        {"shape": np.array([0, 4, 3], np.int64)},
    )
    assert runtime(path).signature.outputs == (TensorSpec("y", "float32", (4, 3)),)


def test_weights_listed_as_inputs_are_no_inputs(tmp_path: Path) -> None:
    """Old files list their weights among the inputs; callers do not send them."""
    graph = helper.make_graph(
        [node("Mul", "x w", "y")],
        "old",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in (("x", ["n", 2]), ("w", [2]))],
        [helper.make_tensor_value_info("y", FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.array([2, 3], np.float32), "w")],
    )
    path = tmp_path / "old.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), path)
    loaded = runtime(path)
    assert [spec.name for spec in loaded.signature.inputs] == ["x"]
    assert loaded.run([np.ones((1, 2), np.float32)])[0].tolist() == [[2, 3]]


def texts(*words: str) -> np.ndarray:
    """Return strings as an array of bytes."""
    array = np.empty(len(words), object)
    array[:] = [word.encode() for word in words]
    return array


def test_requests_of_any_length_are_batched_by_shape(tmp_path: Path) -> None:
    """Two dynamic axes: requests of the same length run as one batch, and each gets its own part."""
    path = one_operator(tmp_path, "Neg", ("x", FLOAT, ["n", "length"]), ("y", FLOAT, ["n", "length"]))
    loaded = runtime(path)
    assert loaded.signature.tensors == ModelTensors(
        (TensorInfo("x", "float32", (-1, -1)),), (TensorInfo("y", "float32", (-1, -1)),), batched=True
    )
    requests = [
        np.full((rows, length), rows, np.float32) for rows, length in ((1, 3), (2, 5), (7, 3), (1, 3))
    ]
    calls: list[int] = []
    model = loaded._model  # type: ignore[attr-defined]
    loaded._model = lambda feeds: (calls.append(len(feeds["x"])), model(feeds))[1]  # type: ignore[attr-defined]
    answers = score(loaded, *({"x": request} for request in requests))
    assert [answer["y"].tolist() for answer in answers] == [(-request).tolist() for request in requests]
    # Batches of at most 8 rows: 1 + 7 of length 3, 1 more of length 3, 2 of length 5.
    assert sorted(calls) == [1, 2, 8]


@pytest.mark.parametrize("shape", [[1, 2], [2], [], [3, "n"]])
def test_a_model_without_a_batch_axis_runs_request_by_request(tmp_path: Path, shape: list[int | str]) -> None:
    """A fixed first axis belongs to the model, so requests are not joined."""
    loaded = runtime(one_operator(tmp_path, "Neg", ("x", FLOAT, shape), ("y", FLOAT, shape)))
    assert loaded.signature.tensors is not None
    assert not loaded.signature.tensors.batched
    given = np.ones([4 if isinstance(size, str) else size for size in shape], np.float32)
    answers = score(loaded, {"x": given}, {"x": given * 2})
    assert [answer["y"].tolist() for answer in answers] == [(-given).tolist(), (-given * 2).tolist()]


def count_tokens(folder: Path, outputs: list[Value]) -> Path:
    """A model that counts the tokens of each row that are not -1, and gives the tokens again."""
    nodes = [
        node("Equal", "tokens padding", "is_padding"),
        node("Not", "is_padding", "is_token"),
        node("Cast", "is_token", "ones", to=INT64),
        node("ReduceSum", "ones last", "count", keepdims=0),
        node("Identity", "tokens", "again"),
    ]
    taken: list[Value] = [("tokens", INT64, ["rows", "length"])]
    return write(folder, nodes, taken, outputs, {"padding": np.array(-1), "last": np.array([1])})


def test_requests_of_similar_length_are_padded_to_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The declared value fills free sizes up; lengths that differ by a factor of two are not joined."""
    path = count_tokens(tmp_path, [("count", INT64, ["rows"])])
    loaded = load_onnx(dataclasses.replace(deployment(path), pad={"tokens": -1}), CPU, 1)
    shapes: list[tuple[int, ...]] = []
    model = loaded._model  # type: ignore[attr-defined]

    def watched(feeds: dict[str, np.ndarray]) -> Any:
        shapes.append(feeds["tokens"].shape)
        return model(feeds)

    monkeypatch.setattr(loaded, "_model", watched)
    lengths = [5, 7, 40, 4, 33]
    answers = score(loaded, *({"tokens": np.zeros((2, length), np.int64)} for length in lengths))
    assert [answer["count"].tolist() for answer in answers] == [[length] * 2 for length in lengths]
    assert sorted(shapes) == [(4, 40), (6, 7)]


@pytest.mark.parametrize(
    ("pad", "outputs", "complaint"),
    [
        ({"words": 0}, [("count", INT64, ["rows"])], "no input of numbers with a free size"),
        ({"tokens": 0.5}, [("count", INT64, ["rows"])], "it holds int64"),
        ({"tokens": float("nan")}, [("count", INT64, ["rows"])], "it holds int64"),
        ({"tokens": 0}, [("count", INT64, ["rows"]), ("again", INT64, ["rows", "length"])], "is unknown"),
    ],
)
def test_padding_that_cannot_be_undone_is_refused(
    tmp_path: Path, pad: dict[str, float], outputs: list[Value], complaint: str
) -> None:
    """Outputs for each place of the input would include the padding."""
    path = count_tokens(tmp_path, outputs)
    with pytest.raises(LoadFailed, match=complaint):
        load_onnx(dataclasses.replace(deployment(path), pad=pad), CPU, 1)


def test_a_model_that_is_not_batched_is_not_padded(tmp_path: Path) -> None:
    """Padding would have no effect."""
    path = one_operator(tmp_path, "Softmax", ("x", FLOAT, ["n", "m"]), ("y", FLOAT, ["n", 3]), axis=0)
    with pytest.raises(LoadFailed, match="its requests are not batched"):
        load_onnx(dataclasses.replace(deployment(path), pad={"x": 0}), CPU, 1)


def test_strings_go_in_and_out(tmp_path: Path) -> None:
    """Texts are bytes outside of the model, and batched like numbers."""
    taken: Value = ("x", STRING, ["n"])
    loaded = runtime(one_operator(tmp_path, "Identity", taken, ("y", STRING, ["n"])))
    assert loaded.signature.tensors is not None
    assert loaded.signature.tensors.batched
    first, second = score(loaded, {"x": texts("é", "")}, {"x": texts("b")})
    assert first["y"].tolist() == ["é".encode(), b""]
    assert second["y"].tolist() == [b"b"]


def test_a_text_that_is_not_utf8_fails_alone(tmp_path: Path) -> None:
    """ONNX Runtime's strings are texts; other requests are not affected."""
    loaded = runtime(one_operator(tmp_path, "Identity", ("x", STRING, ["n"]), ("y", STRING, ["n"])))
    bad = np.empty(1, object)
    bad[0] = b"\xff"
    failed, good = score(loaded, {"x": bad}, {"x": texts("b")})
    assert isinstance(failed, InvalidInput)
    assert good["y"].tolist() == [b"b"]


@pytest.mark.parametrize(
    ("operator", "other", "reason"),
    [
        (
            "Add",
            np.zeros((2, 4), np.float32),
            "Attempting to broadcast an axis by a dimension other than 1. 3 by 4",
        ),
        ("MatMul", np.zeros((2, 3), np.float32), "MatMul dimension mismatch"),
        ("Gather", np.array([9]), "indices element out of data bounds, idx=9 must be within"),
    ],
)
def test_tensors_that_do_not_go_together_are_refused(
    tmp_path: Path, operator: str, other: np.ndarray, reason: str
) -> None:
    """Free sizes with which the model cannot compute are the caller's fault; the message has the reason."""
    axes = ["k", "l"][: other.ndim]
    taken: list[Value] = [
        ("x", FLOAT, ["n", "m"]),
        ("other", helper.np_dtype_to_tensor_dtype(other.dtype), axes),
    ]
    loaded = runtime(write(tmp_path, [node(operator, "x other", "y")], taken, [("y", FLOAT, None)]))
    (refused,) = score(loaded, {"x": np.zeros((2, 3), np.float32), "other": other})
    assert isinstance(refused, InvalidInput)
    assert reason in str(refused)
    assert "onnxruntime_src" not in str(refused)


@pytest.mark.parametrize(
    ("operator", "attributes", "shape"),
    [
        ("ReduceMean", {"keepdims": 0}, []),
        ("ReduceMean", {"axes": [0]}, [1, 3]),
        ("Transpose", {}, [3, "n"]),
        ("Softmax", {"axis": 0}, ["n", 3]),
        ("CumSum", {}, ["n", 3]),
    ],
)
def test_model_of_mixed_rows_is_not_batched(
    tmp_path: Path, operator: str, attributes: dict[str, Any], shape: list[int | str]
) -> None:
    """A dynamic first axis may be time. Rows are tried beside others, and the reason has the difference."""
    constants = {"axis": np.array(0, np.int64)} if operator == "CumSum" else None
    names = "x axis" if constants else "x"
    path = write(
        tmp_path,
        [node(operator, names, "y", **attributes)],
        [("x", FLOAT, ["n", 3])],
        [("y", FLOAT, shape)],
        constants,
    )
    loaded = runtime(path)
    assert loaded.signature.tensors is not None
    assert not loaded.signature.tensors.batched
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    (answer,) = score(loaded, {"x": given})
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert answer["y"].tolist() == session.run(None, {"x": given})[0].tolist()


def test_types_that_numpy_does_not_have_are_refused(tmp_path: Path) -> None:
    """The message names the tensor and its type."""
    kind = TensorProto.FLOAT8E4M3FN
    path = write(
        tmp_path,
        [node("Cast", "x", "y", to=kind)],
        [("x", FLOAT, ["n", 2])],
        [("y", kind, ["n", 2])],
        opset=19,
    )
    assert "'y'" in refusal(path)
    assert "holds tensor(float8e4m3fn), only numbers and strings are served" in refusal(path)


def test_model_that_refuses_made_up_rows_runs_request_by_request(tmp_path: Path) -> None:
    """The reason has ONNX Runtime's message and the settings that help."""
    path = write(
        tmp_path,
        [
            node("Cast", "x", "i", to=INT64),
            node("Sub", "i one", "below"),
            node("Gather", "table below", "found"),
            # Of sequences the reading says nothing.
            node("SequenceConstruct", "found", "listed"),
            node("SequenceAt", "listed zero", "y"),
        ],
        [("x", FLOAT, ["n"])],
        [("y", FLOAT, ["n"])],
        {"one": np.array(9, np.int64), "zero": np.array(0, np.int64), "table": np.ones(3, np.float32)},
    )
    loaded = runtime(path)
    isolation = loaded.signature.isolation
    assert isolation is not None
    assert (isolation.batched, isolation.how) == (False, "tested")
    assert "indices element out of data bounds" in isolation.reason
    assert isolation.setting == "sample_input: FILE or batching: rows"
    (answer,) = score(loaded, {"x": np.array([9, 8], np.float32)})
    assert answer["y"].tolist() == [1, 1]


def test_a_model_without_inputs_is_refused(tmp_path: Path) -> None:
    """A constant is no model."""
    path = write(
        tmp_path, [node("Identity", "c", "y")], [], [("y", FLOAT, [2])], {"c": np.zeros(2, np.float32)}
    )
    assert "has no inputs" in refusal(path)


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (b"", "It is no ONNX file, or not the whole of one (0 bytes)."),
        (b"no model", "It is no ONNX file, or not the whole of one (8 bytes)."),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n",
            "'git lfs pull' fetches the file.",
        ),
        (None, "File doesn't exist"),
    ],
)
def test_file_that_is_no_onnx_model_is_refused(tmp_path: Path, content: bytes | None, advice: str) -> None:
    """Empty, foreign, Git LFS and missing files are refused with advice."""
    path = tmp_path / "tiny.onnx"
    if content is not None:
        path.write_bytes(content)
    message = refusal(path)
    assert f"ONNX Runtime cannot load {path}: " in message
    assert message.endswith(advice)


def test_a_bad_row_raises_and_the_session_lives_on(tmp_path: Path) -> None:
    """A row that the model cannot take fails its batch; the next batch is fine."""
    path = write(
        tmp_path,
        [node("Cast", "x", "i", to=INT64), node("Gather", "table i", "y")],
        [("x", FLOAT, ["n"])],
        [("y", FLOAT, ["n"])],
        {"table": np.arange(3, dtype=np.float32)},
    )
    loaded = runtime(path)
    with pytest.raises(Exception, match="out of"):
        loaded.run([np.array([1, 99], np.float32)])
    assert loaded.run([np.array([1, 2], np.float32)])[0].tolist() == [1, 2]


def test_a_loaded_model_is_warm(tmp_path: Path) -> None:
    """Loading measures itself and leaves a runtime that answers."""
    path = one_operator(tmp_path, "Neg", ("x", FLOAT, ["n", 2]), ("y", FLOAT, ["n", 2]))
    loaded = load(dataclasses.replace(deployment(path), threads=2), CPU)
    assert loaded.signature.inputs[0].name == "x"
    assert loaded.runtime.run([np.ones((8, 2), np.float32)])[0].sum() == -16


def test_a_gpu_that_is_not_used_is_an_error(tmp_path: Path) -> None:
    """ONNX Runtime itself would use the CPU."""
    path = one_operator(tmp_path, "Neg", ("x", FLOAT, ["n", 2]), ("y", FLOAT, ["n", 2]))
    with pytest.raises((DeviceUnavailable, LoadFailed)):
        load_onnx(deployment(path), Device("cuda", 99, "no GPU"), 1)


def test_a_fork_runs_the_same_model(tmp_path: Path) -> None:
    """Several instances share a session, for rows and for packed requests."""
    rows = runtime(one_operator(tmp_path, "Neg", ("x", FLOAT, ["n", 2]), ("y", FLOAT, ["n", 2])))
    assert isinstance(rows, ForkingRuntime)
    assert isinstance(rows.fork().run([np.ones((3, 2), np.float32)])[0], np.ndarray)

    whole = runtime(one_operator(tmp_path, "Neg", ("x", FLOAT, [2]), ("y", FLOAT, [2])))
    assert isinstance(whole, ForkingRuntime)
    fork = whole.fork()
    assert fork.signature == whole.signature
    (answer,) = score(fork, {"x": np.array([1, -2], np.float32)})
    assert answer["y"].tolist() == [-1, 2]


def test_no_memory_is_not_the_callers_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime raises the same class of error for tensors that do not fit the model."""
    whole = runtime(one_operator(tmp_path, "Neg", ("x", FLOAT, [2]), ("y", FLOAT, [2])))

    def refuse(*_: Any) -> Any:
        raise Fail("Failed to allocate memory for requested buffer of size 8")

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", refuse)
    (failed,) = score(whole, {"x": np.array([1, -2], np.float32)})
    assert isinstance(failed, OutOfMemory)


def test_trial_runs_at_load_print_no_errors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A model that refuses trial inputs is loaded without error lines of ONNX Runtime."""
    load_onnx(deployment(write_picky(tmp_path / "model.onnx")), CPU, 1)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["dynamic int8 by hand", "mean × 1e-3", "condition"])
def test_the_node_that_mixes_rows_is_named(tmp_path: Path, name: str) -> None:
    """A model whose graph mixes rows is not batched, and the reason names the node."""
    (tmp_path / "model.onnx").write_bytes(ZOO[name][0]())
    signature = runtime(tmp_path / "model.onnx").signature
    assert signature.isolation is not None
    assert (signature.isolation.batched, signature.isolation.how) == (False, "read")
    assert "'/" in signature.isolation.reason


def test_rows_that_are_apart_by_the_graph_are_proven(tmp_path: Path) -> None:
    """A model whose operators all keep rows apart is batched; its isolation is read, not tested."""
    (tmp_path / "model.onnx").write_bytes(ZOO["mean × 1e-3"][1]())
    signature = runtime(tmp_path / "model.onnx").signature
    assert signature.isolation is not None
    assert (signature.isolation.batched, signature.isolation.how) == (True, "read")


def test_an_input_of_any_rank_is_served_unbatched(tmp_path: Path) -> None:
    """Without a declared rank, the input takes numbers, vectors and matrices; a declared scalar stays one."""
    path = write(tmp_path, [node("Add", "x one", "y")], [("x", FLOAT, None)], [("y", FLOAT, None)], ONE)
    loaded = runtime(path)
    tensors = loaded.signature.tensors
    assert tensors is not None
    (info,) = tensors.inputs
    assert (info.any_rank, str(info)) == (True, "x float32[...]")
    assert msgspec.convert(msgspec.to_builtins(tensors), ModelTensors) == tensors
    assert loaded.signature.isolation is not None
    assert "'x' may have any rank" in loaded.signature.isolation.reason
    for given in ([[1, 2], [3, 4]], [1, 2, 3], 5):
        array = as_tensor(given, info)
        (answer,) = score(loaded, {"x": array})
        assert answer["y"].tolist() == (np.array(given) + 1).tolist()
    scalar = write(tmp_path, [node("Add", "x one", "y")], [("x", FLOAT, [])], [("y", FLOAT, [])], ONE)
    declared = runtime(scalar).signature.tensors
    assert declared is not None
    assert not declared.inputs[0].any_rank


@pytest.mark.parametrize(("counts", "batched"), [(True, True), (False, False)])
def test_padded_words_that_are_only_counted_are_batched(tmp_path: Path, counts: bool, batched: bool) -> None:
    """Converted text classifiers of scikit-learn count words; if the words are the answer, rows are mixed."""
    tokenizer = helper.make_node(
        "Tokenizer",
        ["x"],
        ["words"],
        domain="com.microsoft",
        mark=0,
        mincharnum=1,
        pad_value="#",
        tokenexp="[a-z]+",
    )
    vectorizer = node(
        "TfIdfVectorizer",
        "words",
        "y",
        max_gram_length=1,
        max_skip_count=0,
        min_gram_length=1,
        mode="TF",
        ngram_counts=[0],
        ngram_indexes=[0, 1],
        pool_strings=["word", "stoker"],
    )
    nodes = [tokenizer, vectorizer] if counts else [tokenizer]
    outputs = [("y", FLOAT, ["n", 2])] if counts else [("words", STRING, ["n", "m"])]
    path = write(tmp_path, nodes, [("x", STRING, ["n"])], outputs)
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    isolation = runtime(path).signature.isolation
    assert isolation is not None
    assert (isolation.batched, isolation.how) == (batched, "tested")
