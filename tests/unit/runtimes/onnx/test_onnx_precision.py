"""Models converted to 16 bits at load, run by the real ONNX Runtime on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from tests.tiny_models import write_mlp, write_pictures

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.runtimes.base import ChosenRuntime, Runtime
from stoker.runtimes.onnx import precision as onnx_precision
from stoker.runtimes.onnx.loading import load_onnx
from stoker.runtimes.onnx.precision import convert, is_compared
from stoker.runtimes.onnx.sessions import OnnxSessions
from stoker.runtimes.packed import Feeds, Run
from stoker.runtimes.precision import check_precision
from stoker.settings.choices import Acceleration, Precision
from stoker.tensors import TensorInfo

ROWS = (TensorInfo("x", "float32", (-1, 784)),)


def running(model: Path | bytes) -> Run:
    """Return a session on the CPU as a function of named tensors."""
    source = model if isinstance(model, bytes) else str(model)
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True))


def test_a_converted_model_computes_in_float16_behind_the_same_inputs(tmp_path: Path) -> None:
    """Weights are float16, inputs and outputs stay float32, and the difference is returned for the log."""
    path = write_mlp(tmp_path / "mlp.onnx")
    converted = convert("digits", path, "fp16")
    model = onnx.load_from_string(converted)
    assert {tensor.data_type for tensor in model.graph.initializer} == {TensorProto.FLOAT16}
    kinds = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    assert kinds == {TensorProto.FLOAT}

    difference = check_precision("digits", "fp16", running(converted), lambda: running(path), ROWS)
    assert difference is not None
    assert 0 < difference < 0.02
    rows = np.random.default_rng(3).random((5, 784), np.float32)
    exact, given = running(path)({"x": rows})["y"], running(converted)({"x": rows})["y"]
    assert 0 < np.abs(given - exact).max() < 0.02 * np.abs(exact).max()


def test_converted_model_is_not_converted_again(tmp_path: Path) -> None:
    """A model of float16 with float32 inputs answers the same."""
    path = tmp_path / "half.onnx"
    path.write_bytes(convert("digits", write_mlp(tmp_path / "mlp.onnx"), "fp16"))
    rows = np.random.default_rng(3).random((5, 784), np.float32)
    again = running(convert("digits", path, "fp16"))({"x": rows})["y"]
    np.testing.assert_array_equal(again, running(path)({"x": rows})["y"])


def test_a_model_in_bfloat16_has_the_weights_of_float32_rounded(tmp_path: Path) -> None:
    """Weights and casts are bfloat16. ONNX Runtime's CPU has no products of them: the test reads the graph."""
    path = write_mlp(tmp_path / "mlp.onnx")
    model = onnx.load_from_string(convert("digits", path, "bf16"))
    original = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    for tensor in model.graph.initializer:
        assert tensor.data_type == TensorProto.BFLOAT16
        wide = numpy_helper.to_array(tensor).astype(np.float32)
        np.testing.assert_allclose(wide, original[tensor.name], rtol=2**-7, atol=1e-6)
    casts = [node.attribute[0].i for node in model.graph.node if node.op_type == "Cast"]
    assert set(casts) == {TensorProto.BFLOAT16, TensorProto.FLOAT}
    kinds = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    assert kinds == {TensorProto.FLOAT}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_sixteen_bits_are_refused_on_the_cpu(tmp_path: Path, precision: Precision) -> None:
    """The setting would change the answers, so it is not ignored."""
    path = write_mlp(tmp_path / "mlp.onnx")
    acceleration = Acceleration(precision=precision)
    deployment = Deployment("digits", 1, "onnx", path, path.parent, 8, 1024, acceleration=acceleration)
    with pytest.raises(LoadFailed, match=f"digits: precision: {precision} is for GPUs"):
        load_onnx(deployment, Device("cpu", 0, "CPU"), 1)


def scaled(factor: float) -> Callable[[Feeds], dict[str, np.ndarray]]:
    return lambda feeds: {"y": feeds["x"] * np.float32(factor), "i": np.arange(2)}


def test_outputs_that_differ_too_much_are_refused() -> None:
    """The limit is 5 % of the largest output. Integers may differ, such as the best class of two."""
    check_precision("digits", "fp16", scaled(2), lambda: scaled(2.02), ROWS)
    check_precision(
        "digits", "fp16", scaled(2), lambda: lambda feeds: {**scaled(2)(feeds), "i": np.ones(2, int)}, ROWS
    )
    with pytest.raises(
        LoadFailed, match=r"digits: with precision: fp16 its outputs differ by 0\.33 of the largest one"
    ):
        check_precision("digits", "fp16", scaled(2), lambda: scaled(3), ROWS)


def test_a_class_that_changes_is_refused_unless_it_was_a_near_tie() -> None:
    """Scores of two classes that differ by less than 1 % of the largest number may swap."""

    def scores(*rows: list[float]) -> Callable[[Feeds], dict[str, np.ndarray]]:
        return lambda _: {"y": np.array(rows, np.float32)}

    expected = scores([1.0, 0.995], [0.2, 0.9])
    check_precision("digits", "fp16", scores([0.99, 1.0], [0.2, 0.9]), lambda: expected, ROWS)
    with pytest.raises(LoadFailed, match="the largest value of a row of the output 'y' is another one"):
        check_precision("digits", "fp16", scores([0.96, 0.98]), lambda: scores([1.0, 0.98]), ROWS)


def test_an_overflow_is_refused() -> None:
    """Numbers are too large for float16; numbers that are infinite in float32 may be so."""
    with pytest.raises(LoadFailed, match="the output 'y' is not finite"):
        check_precision("digits", "fp16", scaled(float("inf")), lambda: scaled(2), ROWS)

    def infinite(feeds: Feeds) -> dict[str, np.ndarray]:
        return {"y": np.full((2, 1), np.inf, np.float32)}

    check_precision("digits", "fp16", infinite, lambda: infinite, ROWS)


def scaled_refusing(feeds: Feeds) -> dict[str, np.ndarray]:
    raise ValueError("rows of 2, please")


def test_a_model_that_takes_no_made_up_rows_is_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so, and the original is not loaded."""
    not_loaded = partial(pytest.fail, "it was loaded")
    assert check_precision("digits", "fp16", scaled_refusing, not_loaded, ROWS) is None
    assert "precision fp16 cannot be compared with float32 on the CPU: rows of 2" in caplog.text


def test_failed_conversion_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may be unreadable or too large, or a package is missing."""
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    with pytest.raises(LoadFailed, match=r"digits: .*bad\.onnx cannot be read"):
        convert("digits", bad, "fp16")
    path = write_pictures(tmp_path / "pictures.onnx")
    monkeypatch.setattr(onnx_precision, "MOST_BYTES", 100)
    with pytest.raises(LoadFailed, match="convert this one beforehand"):
        convert("digits", path, "fp16")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(LoadFailed, match=r" pip install 'onnx>="):
        convert("digits", path, "fp16")


class FailingSession:
    """A session whose runs fail."""

    def __init__(self, session: onnxruntime.InferenceSession, says: str) -> None:
        self._session = session
        self._says = says

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def run(self, *_: object) -> None:
        raise Fail(f"[ONNXRuntimeError] : 1 : FAIL : Non-zero status code. Status Message: {self._says}")


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each session whether its channels are last; such a session fails."""
    opened: list[bool] = []

    def open_session(sessions: OnnxSessions) -> object:
        opened.append(sessions.channels_last)
        session = sessions.open_on_cpu(sessions.model)
        return FailingSession(session, sessions.deployment.name) if sessions.channels_last else session

    monkeypatch.setattr(OnnxSessions, "open", open_session)
    return opened


def load_converted(path: Path, says: str) -> Runtime:
    """Load a model in float16 on a GPU whose libraries fail with a message if channels are last."""
    acceleration = Acceleration(precision="fp16", execution="copied")
    deployment = Deployment(says, 1, "onnx", path, path.parent, 8, 1024, acceleration=acceleration)
    return load_onnx(deployment, Device("cuda", 0, "GPU"), 1)


def test_images_have_their_channels_first_where_cudnn_cannot_run_them_last(
    tmp_path: Path, layouts: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    """Its frontend refuses a convolution when it runs, not when the session is opened."""
    caplog.set_level("INFO")
    runtime = load_converted(
        write_pictures(tmp_path / "pictures.onnx"), "CUDNN_FE failure 8: HEURISTIC_QUERY_FAILED"
    )
    assert layouts == [True, False]
    refused = caplog.messages[0]
    assert "the channels first, which is slower: cuDNN cannot run it with the channels last: " in refused
    assert isinstance(runtime, ChosenRuntime)
    assert runtime.choice.startswith(
        "execution copied; graph plain; precision fp16, outputs differ from float32 on the CPU by "
    )


def test_other_errors_do_not_change_the_layout(tmp_path: Path, layouts: list[bool]) -> None:
    """Faults of the device end the load; errors of the model do not."""
    with pytest.raises(LoadFailed, match=r"fails for all inputs: .*CUDNN_STATUS_ALLOC_FAILED"):
        load_converted(write_pictures(tmp_path / "pictures.onnx"), "CUDNN_STATUS_ALLOC_FAILED")
    load_converted(write_pictures(tmp_path / "pictures.onnx"), "sizes do not fit")
    assert layouts == [True, True]


def test_models_of_many_gigabytes_are_not_loaded_on_the_cpu_besides(tmp_path: Path) -> None:
    """Weights beside the file count; converted models are always compared."""
    path = write_mlp(tmp_path / "mlp.onnx")
    assert is_compared("tf32", path)
    with (tmp_path / "mlp.onnx.data").open("wb") as file:
        file.truncate(1 << 30)
    assert not is_compared("tf32", path)
    assert is_compared("fp16", path)
