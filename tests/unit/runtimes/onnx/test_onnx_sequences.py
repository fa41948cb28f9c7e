"""ONNX models with state: which axes, sizes and constants they have, and what their rows come to."""

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
from tests.puppets import PuppetRuntime
from tests.tiny_models import write_running_sum, write_told

from stoker.deployment import Declaration, DeclaredTensor, Deployment, Device
from stoker.device.loading import load
from stoker.errors import LoadFailed
from stoker.runtimes.onnx.sequences import _constant
from stoker.runtimes.sequences import SequenceRuntime, sequence_runtime
from stoker.sequence_steps import SEQUENCE_END, SEQUENCE_START, SequenceStep
from stoker.settings.sequence import read_sequence
from stoker.tensors import Signature, TensorInfo, TensorSpec

CPU = Device("cpu", 0, "a processor")
SETTINGS: dict[str, Any] = {
    "state": [{"input_name": "sum", "output_name": "next_sum"}],
    "dims": {"x": [2]},
    "constants": {"times": 3},
}


TOLD: dict[str, Any] = {
    "state": None,
    "constants": None,
    "dims": None,
    "controls": {"START": "start", "END": "end", "READY": "ready", "CORRID": "id"},
}


def loaded(path: Path, **changed: Any) -> SequenceRuntime:
    """The model with the settings, some of them changed; None leaves one out."""
    said = {key: value for key, value in (SETTINGS | changed).items() if value is not None}
    deployment = Deployment("sums", 1, "onnx", path, path.parent, 8, 1000, sequence=read_sequence(said))
    runtime = load(deployment, CPU).runtime
    assert isinstance(runtime, SequenceRuntime)
    return runtime


def test_rows_come_to_what_the_runtime_alone_comes_to(tmp_path: Path) -> None:
    """In batches with others, whose state is in another axis; the state is no input or output to callers."""
    path = write_running_sum(tmp_path / "sums.onnx")
    runtime = loaded(path)
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
    """What one instance has left, the other one finds."""
    first = loaded(write_running_sum(tmp_path / "sums.onnx"))
    second = first.fork()
    assert first.states.admit((1, 1), start=True) is None
    x = np.ones((1, 2), np.float32)
    first.run([x, np.array([[1, 1, SEQUENCE_START]])])
    assert second.run([x, np.array([[1, 1, 0]])])[0].tolist() == [[6, 6]]


@pytest.mark.parametrize("flags", [TensorProto.FLOAT, TensorProto.INT32, TensorProto.BOOL])
def test_a_model_is_told_of_its_sequences(tmp_path: Path, flags: int) -> None:
    """Whether a row begins one, ends it, is one at all, and of which: none of that is an input for callers."""
    runtime = loaded(write_told(tmp_path / "told.onnx", flags), **TOLD)
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


def test_flags_have_the_values_that_were_said(tmp_path: Path) -> None:
    """Such as the other way round."""
    ready = {"is": "ready", "values": [1.5, -2], "dtype": "float32"}
    told = TOLD | {"controls": TOLD["controls"] | {"READY": ready}}
    runtime = loaded(write_told(tmp_path / "told.onnx"), **told)
    words = np.array([SequenceStep(7).words(""), (0, 0, 0)])
    (y,) = runtime.run([np.zeros((2, 1), np.float32), np.array([7, 0]), words])
    assert y[:, 3].tolist() == [-2, 1.5]


def test_ids_are_told_as_texts(tmp_path: Path) -> None:
    """Numbers too; what no frontend says is a text as well."""
    texts = ["7", "é" * 128]
    runtime = loaded(write_told(tmp_path / "told.onnx", ids=TensorProto.STRING, texts=texts), **TOLD)
    steps = [SequenceStep(7), SequenceStep("é" * 128), SequenceStep("seven"), SequenceStep("\ud800")]
    ids = np.array([np.frombuffer(step.text(), np.uint8) for step in steps])
    words = np.array([step.words("") for step in steps])
    (y,) = runtime.run([np.zeros((4, 1), np.float32), ids, words])
    assert y[:, 4].tolist() == [0, 1, -1, -1]


@pytest.mark.parametrize("name", ["first.npy", "first.bin"])
def test_a_state_begins_with_a_file(tmp_path: Path, name: str) -> None:
    """As numpy writes them, or the numbers alone; a sequence that is begun anew begins with it again."""
    first = np.array([[10, 20]], np.float32)
    if name.endswith("npy"):
        np.save(tmp_path / name, first)
    else:
        first.tofile(tmp_path / name)
    state = [{**SETTINGS["state"][0], "initial": name}]
    runtime = loaded(write_running_sum(tmp_path / "sums.onnx"), state=state)
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
    """When the model is loaded."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    state = [{**SETTINGS["state"][0], "initial": str(tmp_path / name)}]
    path = write_running_sum(tmp_path / "sums.onnx")
    with pytest.raises(LoadFailed, match=complaint):
        loaded(path, state=state)
    np.save(tmp_path / "wide.npy", np.zeros((1, 2)))
    with pytest.raises(LoadFailed, match=r"that holds float64\[1, 2\]"):
        loaded(path, state=[{**SETTINGS["state"][0], "initial": str(tmp_path / "wide.npy")}])


@pytest.mark.parametrize(
    ("controls", "complaint"),
    [
        ({"BEGIN": "start"}, "has no input 'BEGIN'"),
        ({"CORRID": "start"}, "'CORRID' .* told that a row begins its sequence, holds int64, not int32 or"),
        ({"START": "id"}, "holds float32, not uint64 or int64"),
        ({"START": {"is": "start", "dtype": "bool"}}, "holds float32, not bool"),
        ({"START": {"is": "start", "values": [0, 1e300]}}, "holds float32, which 0 and 1e[+]300 do not fit"),
    ],
)
def test_inputs_that_cannot_be_told_are_refused(
    tmp_path: Path, controls: dict[str, Any], complaint: str
) -> None:
    """When the model is loaded, with what they hold."""
    with pytest.raises(LoadFailed, match=complaint):
        loaded(write_told(tmp_path / "told.onnx"), **(TOLD | {"controls": controls}))


def test_numbers_that_are_too_large_for_whole_ones_are_refused(tmp_path: Path) -> None:
    """In the same words, and without numpy's."""
    end = {"END": {"is": "end", "values": [0, 1e300]}}
    path = write_told(tmp_path / "told.onnx", flags=TensorProto.INT32)
    with pytest.raises(LoadFailed, match=r"holds int32, which 0 and 1e[+]300 do not fit"):
        loaded(path, **(TOLD | {"controls": end}))


def test_control_input_has_one_number_a_row(tmp_path: Path) -> None:
    """A control input with more than one element a row is refused."""
    with pytest.raises(
        LoadFailed, match=r"has the sizes \['rows', 'width'\]: it has to have one element a row"
    ):
        loaded(write_running_sum(tmp_path / "sums.onnx"), controls={"x": "start"}, dims=None)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (
            {"state": [{"input_name": "h", "output_name": "next_sum"}]},
            "has no input 'h'.* it has x, sum, times",
        ),
        ({"state": [{"input_name": "sum", "output_name": "h"}]}, "has no output 'h'"),
        ({"constants": {"times": 3, "k": 1}}, "has no input 'k'"),
        ({"dims": None}, r"'x' of sums has the sizes \['\?'\]: say what they are with dims"),
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
def test_settings_that_are_not_the_model_s_are_refused(
    tmp_path: Path, changed: dict[str, Any], complaint: str
) -> None:
    """When it is loaded, in words that say what it has."""
    with pytest.raises(LoadFailed, match=complaint):
        loaded(write_running_sum(tmp_path / "sums.onnx"), **changed)


def declared(path: Path, *outputs: DeclaredTensor, **more: Any) -> SequenceRuntime:
    """The model with what is declared of it."""
    said = Declaration("config.pbtxt of sums", outputs=outputs, **more)
    sequence = read_sequence(SETTINGS)
    deployment = Deployment(
        "sums", 1, "onnx", path, path.parent, 8, 1000, sequence=sequence, declaration=said
    )
    runtime = load(deployment, CPU).runtime
    assert isinstance(runtime, SequenceRuntime)
    return runtime


def test_a_model_with_state_is_as_it_is_declared(tmp_path: Path) -> None:
    """Its tensors are reshaped for callers, and outputs that are not listed are not given."""
    path = write_running_sum(tmp_path / "sums.onnx")
    x = DeclaredTensor("x", "float32", (-1, 2, 1), (-1, 2))
    y = DeclaredTensor("y", "float32", (-1, 1, 2), (-1, 2))
    runtime = declared(path, y, inputs=(x,), batched=True)
    tensors = runtime.signature.model_tensors
    assert tensors is not None
    assert tensors.inputs == (TensorInfo("x", "float32", (-1, 2, 1)),)
    assert tensors.outputs == (TensorInfo("y", "float32", (-1, 1, 2)),)
    assert runtime.states.admit((1, 1), start=True) is None
    for flags, sums in ((SEQUENCE_START, 3), (0, 6)):
        (answer,) = runtime.run([np.ones((1, 2, 1), np.float32), np.array([[1, 1, flags]])])
        assert answer.tolist() == [[[sums, sums]]]
    with pytest.raises(LoadFailed, match="has only state"):
        declared(path, DeclaredTensor("next_sum", "float32", (-1, 1, 2)), batched=True)


@pytest.mark.parametrize(
    ("output", "batched", "complaint"),
    [
        (DeclaredTensor("y", "float64", (-1, 2)), True, r"the output y float64\[\?,2\] is y float32"),
        (DeclaredTensor("y", "float32", (-1, 3)), True, r"the output y float32\[\?,3\] is y float32"),
        (DeclaredTensor("z", "float32", (-1, 2)), True, "the model has no output 'z'"),
        (DeclaredTensor("y", "float32", (2, 2)), False, r"the dims of y have to begin with 1, .* \[2, 2\]"),
    ],
)
def test_another_model_with_state_than_the_declared_one_is_refused(
    tmp_path: Path, output: DeclaredTensor, batched: bool, complaint: str
) -> None:
    """As one without state is."""
    with pytest.raises(LoadFailed, match=f"config.pbtxt of sums: .*{complaint}"):
        declared(write_running_sum(tmp_path / "sums.onnx"), output, batched=batched)


def test_a_state_of_another_type_than_the_declared_one_is_refused(tmp_path: Path) -> None:
    """The type is part of what is said of it."""
    state = [{**SETTINGS["state"][0], "dtype": "float64"}]
    with pytest.raises(LoadFailed, match="'sum' of sums holds float32, not float64"):
        loaded(write_running_sum(tmp_path / "sums.onnx"), state=state)


def test_a_model_of_one_row_runs_its_rows_one_after_the_other(tmp_path: Path) -> None:
    """Its batch axis has the size 1, in the file or because `max_batch_size` is 0; each row has its own state."""
    path = write_running_sum(tmp_path / "sums.onnx")
    declared_so = declared(path, DeclaredTensor("y", "float32", (1, 2)), batched=False)
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param == "rows":
                size.dim_value = 1
    onnx.save(model, tmp_path / "one.onnx")
    exported_so = loaded(tmp_path / "one.onnx", state=[{**SETTINGS["state"][0], "batch_axis": 1}])
    for runtime in (declared_so, exported_so):
        keys = [(1, name) for name in range(3)]
        assert not any(runtime.states.admit(key, start=True) for key in keys)
        x = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
        for flags, turn in ((SEQUENCE_START, 1), (0, 2)):
            (y,) = runtime.run([x, np.array([[*key, flags] for key in keys])])
            assert y.tolist() == (3 * turn * x).tolist()


def test_a_state_has_the_same_sizes_on_its_way_in_and_out() -> None:
    """What a model gives has to be what it takes."""
    specs = [TensorSpec(name, "float32", (size,)) for name, size in (("x", 1), ("h", 2), ("y", 1), ("hn", 3))]
    inner = Forked(Signature(tuple(specs[:2]), tuple(specs[2:])))
    settings = read_sequence({"state": [{"input_name": "h", "output_name": "hn"}]})
    with pytest.raises(LoadFailed, match=r"takes h float32\[2\] as state and gives hn float32\[3\]"):
        sequence_runtime("m", inner, settings)


class Forked(PuppetRuntime):
    """A puppet that can be forked."""

    def fork(self) -> Forked:
        """The same."""
        return self


def test_a_constant_that_no_memory_holds_is_not_made() -> None:
    """Its sizes are the model's; the message says what they would take."""
    value = SimpleNamespace(name="times", shape=[1 << 45], type="tensor(float)")
    with pytest.raises(MemoryError, match="the constant for the input 'times' of sums would take"):
        _constant("sums", value, 1)
