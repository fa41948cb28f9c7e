"""Models converted to float16 at load, run by the real ONNX Runtime on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from tests.tiny_models import write_mlp, write_pictures

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.runtimes import onnx as onnx_float16
from stoker.runtimes.onnx import check_float16, convert_to_float16, load_onnx
from stoker.runtimes.onnx_sessions import OnnxSessions
from stoker.runtimes.packed import Feeds, Run
from stoker.settings.choices import Acceleration
from stoker.tensors import TensorInfo

ROWS = (TensorInfo("x", "float32", (-1, 784)),)


def running(model: Path | bytes) -> Run:
    """A session on the CPU as a function of named tensors."""
    source = model if isinstance(model, bytes) else str(model)
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True))


def test_a_converted_model_computes_in_float16_behind_the_same_inputs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights are float16, inputs and outputs stay float32, and the difference is in the log."""
    caplog.set_level("INFO")
    path = write_mlp(tmp_path / "mlp.onnx")
    converted = convert_to_float16("digits", path)
    model = onnx.load_from_string(converted)
    assert {tensor.data_type for tensor in model.graph.initializer} == {TensorProto.FLOAT16}
    kinds = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    assert kinds == {TensorProto.FLOAT}

    check_float16("digits", running(converted), lambda: running(path), ROWS)
    assert "digits: in float16 its outputs differ by " in caplog.text
    rows = np.random.default_rng(3).random((5, 784), np.float32)
    exact, given = running(path)({"x": rows})["y"], running(converted)({"x": rows})["y"]
    assert 0 < np.abs(given - exact).max() < 0.02 * np.abs(exact).max()


def test_a_model_that_was_converted_before_is_taken_as_it_is(tmp_path: Path) -> None:
    """What somebody has converted, with float32 inputs kept, still loads and gives the same."""
    path = tmp_path / "half.onnx"
    path.write_bytes(convert_to_float16("digits", write_mlp(tmp_path / "mlp.onnx")))
    rows = np.random.default_rng(3).random((5, 784), np.float32)
    again = running(convert_to_float16("digits", path))({"x": rows})["y"]
    np.testing.assert_array_equal(again, running(path)({"x": rows})["y"])


def scaled(factor: float) -> Callable[[Feeds], dict[str, np.ndarray]]:
    return lambda feeds: {"y": feeds["x"] * np.float32(factor), "i": np.arange(2)}


def test_a_model_that_loses_too_much_is_refused() -> None:
    """By more than 5 % of the largest output; whole numbers may turn, such as the best class of two."""
    check_float16("digits", scaled(2), lambda: scaled(2.02), ROWS)
    check_float16("digits", scaled(2), lambda: lambda feeds: {**scaled(2)(feeds), "i": np.ones(2, int)}, ROWS)
    with pytest.raises(
        LoadFailed, match=r"digits: in float16 its outputs differ by 0\.33 of the largest one"
    ):
        check_float16("digits", scaled(2), lambda: scaled(3), ROWS)


def test_an_overflow_is_refused() -> None:
    """Its numbers are too large for float16; what is infinite anyway may stay so."""
    with pytest.raises(LoadFailed, match="the output 'y' is not finite"):
        check_float16("digits", scaled(float("inf")), lambda: scaled(2), ROWS)

    def infinite(feeds: Feeds) -> dict[str, np.ndarray]:
        return {"y": np.full((2, 1), np.inf, np.float32)}

    check_float16("digits", infinite, lambda: infinite, ROWS)


def scaled_refusing(feeds: Feeds) -> dict[str, np.ndarray]:
    raise ValueError("rows of 2, please")


def test_a_model_that_takes_no_made_up_rows_is_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so, and the original is not loaded."""
    check_float16("digits", scaled_refusing, lambda: pytest.fail("it was loaded"), ROWS)
    assert "its answers in float16 cannot be compared" in caplog.text


def test_what_cannot_be_converted_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no model, one that is too large, and a missing package."""
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    with pytest.raises(LoadFailed, match=r"digits: .*bad\.onnx cannot be read"):
        convert_to_float16("digits", bad)
    path = write_pictures(tmp_path / "pictures.onnx")
    monkeypatch.setattr(onnx_float16, "_MOST_BYTES", 100)
    with pytest.raises(LoadFailed, match="convert this one beforehand"):
        convert_to_float16("digits", path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(LoadFailed, match=r" pip install 'onnx>="):
        convert_to_float16("digits", path)


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
    """Of each session, whether its channels are last; such a one fails, saying the name of its model."""
    opened: list[bool] = []

    def open_session(sessions: OnnxSessions) -> object:
        opened.append(sessions.channels_last)
        session = sessions.open_on_cpu(sessions.model)
        return FailingSession(session, sessions.deployment.name) if sessions.channels_last else session

    monkeypatch.setattr(OnnxSessions, "open", open_session)
    return opened


def load_converted(path: Path, says: str) -> None:
    """Load a model in float16 on a GPU whose libraries say this of channels that are last."""
    acceleration = Acceleration(precision="fp16", execution="copied")
    deployment = Deployment(says, 1, "onnx", path, path.parent, 8, 1024, acceleration=acceleration)
    load_onnx(deployment, Device("cuda", 0, "GPU"), 1)


def test_images_have_their_channels_first_where_cudnn_cannot_run_them_last(
    tmp_path: Path, layouts: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    """Its frontend refuses a convolution when it runs, not when the session is opened."""
    caplog.set_level("INFO")
    load_converted(write_pictures(tmp_path / "pictures.onnx"), "CUDNN_FE failure 8: HEURISTIC_QUERY_FAILED")
    assert layouts == [True, False]
    refused, compared = (record.getMessage() for record in caplog.records[:2])
    assert "the channels first, which is slower: cuDNN cannot run it with the channels last: " in refused
    assert "in float16 its outputs differ by " in compared


def test_other_errors_do_not_change_the_layout(tmp_path: Path, layouts: list[bool]) -> None:
    """The load ends with those of the device, as it would without a conversion, and goes on with the model's."""
    with pytest.raises(LoadFailed, match=r"fails whatever it is given: .*CUDNN_STATUS_ALLOC_FAILED"):
        load_converted(write_pictures(tmp_path / "pictures.onnx"), "CUDNN_STATUS_ALLOC_FAILED")
    load_converted(write_pictures(tmp_path / "pictures.onnx"), "sizes do not fit")
    assert layouts == [True, True]
