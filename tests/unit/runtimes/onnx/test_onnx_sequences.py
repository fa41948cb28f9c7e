"""ONNX models with state: axes, sizes, constants and control inputs, and the answers to rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from tests.tiny_models import write_running_sum, write_sequence_controls

from stoker.deployment import Declaration, DeclaredTensor, Deployment, Device
from stoker.device.loading import load
from stoker.errors import LoadFailed
from stoker.runtimes.onnx.sequences import _constant
from stoker.runtimes.sequence_runtime import SequenceRuntime
from stoker.sequence_steps import SEQUENCE_END, SEQUENCE_START, SequenceStep
from stoker.settings.sequence import read_sequence
from stoker.tensors import Signature, TensorInfo

CPU = Device("cpu", 0, "a processor")
SETTINGS: dict[str, Any] = {
    "state": [{"input_name": "sum", "output_name": "next_sum"}],
    "dims": {"x": [2]},
    "constants": {"times": 3},
}


CONTROLS: dict[str, Any] = {
    "state": None,
    "constants": None,
    "dims": None,
    "controls": {"START": "start", "END": "end", "READY": "ready", "CORRID": "id"},
}


def load_model(path: Path, **changed: Any) -> SequenceRuntime:
    """Load a model with `SETTINGS`, some of them changed; None leaves a setting out."""
    settings = {key: value for key, value in (SETTINGS | changed).items() if value is not None}
    deployment = Deployment("sums", 1, "onnx", path, path.parent, 8, 1000, sequence=read_sequence(settings))
    runtime = load(deployment, CPU).runtime
    assert isinstance(runtime, SequenceRuntime)
    return runtime


def test_rows_in_batches_are_answered_as_alone(tmp_path: Path) -> None:
    """The batch of the state is in another axis; callers do not see the state."""
    path = write_running_sum(tmp_path / "sums.onnx")
    runtime = load_model(path)
    tensors = runtime.signature.model_tensors
    assert tensors is not None
    assert tensors.inputs == (TensorInfo("x", "float32", (-1, 2)),)
    assert [info.name for info in tensors.outputs] == ["y"]
    assert tensors.sequences
    session = onnxruntime.InferenceSession(path)
    state = {name: np.zeros((1, 1, 2), np.float32) for name in range(3)}
    keys = np.array([[1, name] for name in range(3)])
    random = np.random.default_rng(5)
    for turn in range(4):
        words = np.c_[keys, np.full(3, 0 if turn else SEQUENCE_START)]
        x = random.standard_normal((3, 2)).astype(np.float32)
        for first, second, flags in words.tolist():
            assert runtime.states.admit((first, second), start=bool(flags)) is None
        (y,) = runtime.run([x, words])
        for name in range(3):
            feeds = {"x": x[name : name + 1], "sum": state[name], "times": np.array(3)}
            alone, state[name] = session.run(["y", "next_sum"], feeds)
            np.testing.assert_array_equal(y[name : name + 1], alone)


def test_a_fork_has_the_same_states(tmp_path: Path) -> None:
    """A sequence may continue in another instance."""
    first = load_model(write_running_sum(tmp_path / "sums.onnx"))
    second = first.fork()
    assert first.states.admit((1, 1), start=True) is None
    x = np.ones((1, 2), np.float32)
    first.run([x, np.array([[1, 1, SEQUENCE_START]])])
    assert second.run([x, np.array([[1, 1, 0]])])[0].tolist() == [[6, 6]]


@pytest.mark.parametrize("flags", [TensorProto.FLOAT, TensorProto.INT32, TensorProto.BOOL])
def test_control_inputs_have_start_end_ready_and_id(tmp_path: Path, flags: int) -> None:
    """Callers do not see these inputs."""
    runtime = load_model(write_sequence_controls(tmp_path / "controls.onnx", flags), **CONTROLS)
    signature = runtime.signature
    assert [spec.name for spec in signature.inputs] == ["x"]
    assert [spec.name for spec in signature.stored_inputs] == ["x", "sequence_id", "sequence"]
    assert Signature.from_json(json.loads(json.dumps(signature.to_json()))) == signature
    steps = [SequenceStep(7, start=True), SequenceStep(1 << 60), SequenceStep(9, start=True, end=True)]
    words = np.array([*(step.words("") for step in steps), (0, 0, 0)])
    ids = np.array([*(step.id for step in steps), 0])
    (y,) = runtime.run([np.array([[5], [6], [7], [0]], np.float32), ids, words])
    assert y.tolist() == [[5, 1, 0, 1, 7], [6, 0, 0, 1, 1 << 60], [7, 1, 1, 1, 9], [0, 0, 0, 0, 0]]
    assert runtime.fork().run([np.ones((1, 1), np.float32)])[0].tolist() == [[1, 0, 0, 0, 0]]


def test_flags_have_the_values_of_the_settings(tmp_path: Path) -> None:
    """The value for true may be the smaller one."""
    ready = {"is": "ready", "values": [1.5, -2], "dtype": "float32"}
    settings = CONTROLS | {"controls": CONTROLS["controls"] | {"READY": ready}}
    runtime = load_model(write_sequence_controls(tmp_path / "controls.onnx"), **settings)
    words = np.array([SequenceStep(7).words(""), (0, 0, 0)])
    (y,) = runtime.run([np.zeros((2, 1), np.float32), np.array([7, 0]), words])
    assert y[:, 3].tolist() == [-2, 1.5]


def test_ids_may_be_texts(tmp_path: Path) -> None:
    """Numeric ids become texts, and ids that no frontend sends do not fail."""
    texts = ["7", "é" * 128]
    runtime = load_model(
        write_sequence_controls(tmp_path / "controls.onnx", ids=TensorProto.STRING, texts=texts), **CONTROLS
    )
    steps = [SequenceStep(7), SequenceStep("é" * 128), SequenceStep("seven"), SequenceStep("\ud800")]
    ids = np.array([np.frombuffer(step.text(), np.uint8) for step in steps])
    words = np.array([step.words("") for step in steps])
    (y,) = runtime.run([np.zeros((4, 1), np.float32), ids, words])
    assert y[:, 4].tolist() == [0, 1, -1, -1]


@pytest.mark.parametrize("name", ["first.npy", "first.bin"])
def test_a_state_begins_with_a_file(tmp_path: Path, name: str) -> None:
    """The file is one of numpy, or holds the numbers alone; a restarted sequence begins with it again."""
    first = np.array([[10, 20]], np.float32)
    if name.endswith("npy"):
        np.save(tmp_path / name, first)
    else:
        first.tofile(tmp_path / name)
    state = [{**SETTINGS["state"][0], "initial": name}]
    runtime = load_model(write_running_sum(tmp_path / "sums.onnx"), state=state)
    assert runtime.states.admit((1, 1), start=True) is None
    x = np.ones((1, 2), np.float32)
    for flags, sums in ((SEQUENCE_START, [33, 63]), (0, [36, 66]), (SEQUENCE_START | SEQUENCE_END, [33, 63])):
        assert runtime.run([x, np.array([[1, 1, flags]])])[0].tolist() == [sums]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("none.npy", None, "cannot begin with .*none.npy: .*No such file"),
        ("short.bin", b"\0\0\0\0", "it has 4 bytes, not 8"),
        ("text.npy", b"numbers", "cannot begin with .*text.npy"),
        ("empty.npy", b"", "cannot begin with .*empty.npy"),
        ("zip.npy", b"PK\x05\x06" + bytes(18), "cannot begin with .*zip.npy"),
    ],
)
def test_a_file_that_is_no_state_is_refused(
    tmp_path: Path, name: str, content: bytes | None, complaint: str
) -> None:
    """The load fails with the reason."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    state = [{**SETTINGS["state"][0], "initial": str(tmp_path / name)}]
    path = write_running_sum(tmp_path / "sums.onnx")
    with pytest.raises(LoadFailed, match=complaint):
        load_model(path, state=state)
    np.save(tmp_path / "wide.npy", np.zeros((1, 2)))
    with pytest.raises(LoadFailed, match=r"that holds float64\[1, 2\]"):
        load_model(path, state=[{**SETTINGS["state"][0], "initial": str(tmp_path / "wide.npy")}])


@pytest.mark.parametrize(
    ("controls", "complaint"),
    [
        ({"BEGIN": "start"}, "has no input 'BEGIN'"),
        ({"CORRID": "start"}, "'CORRID' of sums, its control 'start', holds int64, not int32 or"),
        ({"START": "id"}, "holds float32, not uint64 or int64"),
        ({"START": {"is": "start", "dtype": "bool"}}, "holds float32, not bool"),
        ({"START": {"is": "start", "values": [0, 1e300]}}, "holds float32, which 0 and 1e[+]300 do not fit"),
    ],
)
def test_control_input_that_does_not_fit_is_refused(
    tmp_path: Path, controls: dict[str, Any], complaint: str
) -> None:
    """The message has the type of the input."""
    with pytest.raises(LoadFailed, match=complaint):
        load_model(write_sequence_controls(tmp_path / "controls.onnx"), **(CONTROLS | {"controls": controls}))


def test_numbers_that_are_too_large_for_integers_are_refused(tmp_path: Path) -> None:
    """The message is that of floats, without numpy's warning."""
    end = {"END": {"is": "end", "values": [0, 1e300]}}
    path = write_sequence_controls(tmp_path / "controls.onnx", flags=TensorProto.INT32)
    with pytest.raises(LoadFailed, match=r"holds int32, which 0 and 1e[+]300 do not fit"):
        load_model(path, **(CONTROLS | {"controls": end}))


def test_control_input_has_one_number_a_row(tmp_path: Path) -> None:
    """A control input with more than one element a row is refused."""
    with pytest.raises(
        LoadFailed, match=r"has the sizes \['rows', 'width'\]: it has to have one element a row"
    ):
        load_model(write_running_sum(tmp_path / "sums.onnx"), controls={"x": "start"}, dims=None)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (
            {"state": [{"input_name": "h", "output_name": "next_sum"}]},
            "has no input 'h'.* it has x, sum, times",
        ),
        ({"state": [{"input_name": "sum", "output_name": "h"}]}, "has no output 'h'"),
        ({"constants": {"times": 3, "k": 1}}, "has no input 'k'"),
        ({"dims": None}, r"'x' of sums has the sizes \['\?'\]: set them with dims"),
        ({"dims": {"x": [3]}}, "these cannot: its rows cannot be tried"),
        ({"dims": {"x": [2, 2]}}, r"has the sizes \['\?'\], not \[2, 2\]"),
        ({"state": [{**SETTINGS["state"][0], "dims": [1, 3]}]}, r"has the sizes \[1, 2\], not \[1, 3\]"),
        ({"state": [{**SETTINGS["state"][0], "batch_axis": 2}]}, "axis 2 is neither free nor 1"),
        ({"constants": None}, "'times' of sums has no batch axis: give its value with constants"),
        ({"constants": {"times": 0.5}}, "the constant 0.5 does not fit the input 'times'"),
        (
            {
                "state": [
                    {"input_name": "x", "output_name": "y", "dims": [2], "batch_axis": 0},
                    *SETTINGS["state"],
                ]
            },
            "has only state",
        ),
        (
            {"state": [{"input_name": "sum", "output_name": "y"}]},
            "cannot: output 'y' .* no answer for each row",
        ),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused(
    tmp_path: Path, changed: dict[str, Any], complaint: str
) -> None:
    """The message has the tensors and sizes of the model."""
    with pytest.raises(LoadFailed, match=complaint):
        load_model(write_running_sum(tmp_path / "sums.onnx"), **changed)


def load_declared(path: Path, *outputs: DeclaredTensor, **more: Any) -> SequenceRuntime:
    """Load a model with a declaration of its tensors."""
    declaration = Declaration("config.pbtxt of sums", outputs=outputs, **more)
    sequence = read_sequence(SETTINGS)
    deployment = Deployment(
        "sums", 1, "onnx", path, path.parent, 8, 1000, sequence=sequence, declaration=declaration
    )
    runtime = load(deployment, CPU).runtime
    assert isinstance(runtime, SequenceRuntime)
    return runtime


def test_callers_see_the_declared_tensors_of_a_model_with_state(tmp_path: Path) -> None:
    """The tensors are reshaped, and outputs that are not listed are left out."""
    path = write_running_sum(tmp_path / "sums.onnx")
    x = DeclaredTensor("x", "float32", (-1, 2, 1), (-1, 2))
    y = DeclaredTensor("y", "float32", (-1, 1, 2), (-1, 2))
    runtime = load_declared(path, y, inputs=(x,), batched=True)
    tensors = runtime.signature.model_tensors
    assert tensors is not None
    assert tensors.inputs == (TensorInfo("x", "float32", (-1, 2, 1)),)
    assert tensors.outputs == (TensorInfo("y", "float32", (-1, 1, 2)),)
    assert runtime.states.admit((1, 1), start=True) is None
    for flags, sums in ((SEQUENCE_START, 3), (0, 6)):
        (answer,) = runtime.run([np.ones((1, 2, 1), np.float32), np.array([[1, 1, flags]])])
        assert answer.tolist() == [[[sums, sums]]]
    with pytest.raises(LoadFailed, match="has only state"):
        load_declared(path, DeclaredTensor("next_sum", "float32", (-1, 1, 2)), batched=True)


@pytest.mark.parametrize(
    ("output", "batched", "complaint"),
    [
        (DeclaredTensor("y", "float64", (-1, 2)), True, r"the output y float64\[\?,2\] is y float32"),
        (DeclaredTensor("y", "float32", (-1, 3)), True, r"the output y float32\[\?,3\] is y float32"),
        (DeclaredTensor("z", "float32", (-1, 2)), True, "the model has no output 'z'"),
        (DeclaredTensor("y", "float32", (2, 2)), False, r"the dims of y have to begin with 1, .* \[2, 2\]"),
    ],
)
def test_model_with_state_that_differs_from_its_declaration_is_refused(
    tmp_path: Path, output: DeclaredTensor, batched: bool, complaint: str
) -> None:
    """The message is that for models without state."""
    with pytest.raises(LoadFailed, match=f"config.pbtxt of sums: .*{complaint}"):
        load_declared(write_running_sum(tmp_path / "sums.onnx"), output, batched=batched)


def test_state_of_another_type_than_the_declared_one_is_refused(tmp_path: Path) -> None:
    """The message has both types."""
    state = [{**SETTINGS["state"][0], "dtype": "float64"}]
    with pytest.raises(LoadFailed, match="'sum' of sums holds float32, not float64"):
        load_model(write_running_sum(tmp_path / "sums.onnx"), state=state)


def test_a_model_of_one_row_runs_its_rows_one_after_the_other(tmp_path: Path) -> None:
    """Its batch axis has the size 1, in the file or because `max_batch_size` is 0; each row has its own state."""
    path = write_running_sum(tmp_path / "sums.onnx")
    by_declaration = load_declared(path, DeclaredTensor("y", "float32", (1, 2)), batched=False)
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param == "rows":
                size.dim_value = 1
    onnx.save(model, tmp_path / "one.onnx")
    by_file = load_model(tmp_path / "one.onnx", state=[{**SETTINGS["state"][0], "batch_axis": 1}])
    for runtime in (by_declaration, by_file):
        keys = [(1, name) for name in range(3)]
        assert not any(runtime.states.admit(key, start=True) for key in keys)
        x = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
        for flags, turn in ((SEQUENCE_START, 1), (0, 2)):
            (y,) = runtime.run([x, np.array([[*key, flags] for key in keys])])
            assert y.tolist() == (3 * turn * x).tolist()


def test_a_constant_that_no_memory_holds_is_not_made() -> None:
    """The message has the memory that it would take."""
    value = SimpleNamespace(name="times", shape=[1 << 45], type="tensor(float)")
    with pytest.raises(MemoryError, match="the constant for the input 'times' of sums would take"):
        _constant("sums", value, 1)
