"""Options of ONNX Runtime's providers, and its errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.tiny_models import write_doubler

from stoker.deployment import Deployment, Device
from stoker.errors import DeviceUnavailable, LoadFailed
from stoker.runtimes.base import OutOfMemory
from stoker.runtimes.onnx import sessions as onnx_sessions
from stoker.runtimes.onnx.sessions import (
    FixedSize,
    OnnxSessions,
    cuda_options,
    raise_if_out_of_memory,
    tensorrt_options,
)
from stoker.settings.choices import Acceleration

GPU = Device("cuda", 3, "a GPU", "GPU-1")


def sessions(path: Path, device: Device = GPU, **settings: Any) -> OnnxSessions:
    deployment = Deployment("doubler", 1, "onnx", path, path.parent, 8, 1024, **settings)
    return OnnxSessions(deployment, device, 1, path)


def test_options_of_the_cuda_provider() -> None:
    """The first device, an arena that grows on demand, TF32 unless the precision is fp32, quick plans."""
    options = cuda_options(Acceleration())
    assert options["device_id"] == "0"
    assert options["arena_extend_strategy"] == "kSameAsRequested"
    assert options["use_tf32"] == "1"
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"
    assert not options.keys() & {"gpu_mem_limit", "enable_cuda_graph"}
    assert options["prefer_nhwc"] == "1"
    exact = cuda_options(Acceleration(precision="fp32"))
    assert exact["use_tf32"] == "0"
    assert "prefer_nhwc" not in exact
    assert "prefer_nhwc" not in cuda_options(Acceleration(precision="fp16"), channels_last=False)
    shared = cuda_options(Acceleration(memory_mb=1000), stream=77, share=0.5)
    assert (shared["gpu_mem_limit"], shared["enable_cuda_graph"]) == (str(500 << 20), "1")
    assert shared["user_compute_stream"] == "77"


def value(name: str, *shape: int | str) -> Any:
    return SimpleNamespace(name=name, shape=list(shape))


def test_options_of_the_tensorrt_provider(tmp_path: Path) -> None:
    """One engine serves all sizes of batches if only these are free."""
    acceleration = Acceleration(provider="tensorrt", precision="fp16", memory_mb=3)
    inputs = [value("image", "rows", 3, 8, 8), value("scale", "rows")]
    assert tensorrt_options(acceleration, tmp_path, (1, 4, 16), inputs) == {
        "device_id": "0",
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": str(3 << 20),
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(tmp_path),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(tmp_path),
        "trt_profile_min_shapes": "image:1x3x8x8,scale:1",
        "trt_profile_opt_shapes": "image:16x3x8x8,scale:16",
        "trt_profile_max_shapes": "image:16x3x8x8,scale:16",
    }


@pytest.mark.parametrize(
    ("rows", "inputs"),
    [((), [value("x", "rows", 3)]), ((1, 4), [value("x", "rows", "words")]), ((1, 4), [value("x")])],
)
def test_unknown_shapes_have_no_profile(rows: tuple[int, ...], inputs: list[Any]) -> None:
    """Batches have no fixed sizes, or other axes are free. Without a folder there is no cache."""
    acceleration = Acceleration(provider="tensorrt")
    assert tensorrt_options(acceleration, None, rows, inputs) == {"device_id": "0", "trt_fp16_enable": "0"}


@pytest.mark.parametrize(
    "message",
    [
        "bfc_arena.cc:358 AllocateRawInternal Failed to allocate memory for requested buffer of size 765249024",
        "AllocateRawInternal Available memory of 512 is smaller than requested bytes of 4096",
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=h ; file=cuda_allocator.cc ; expr=cudaMalloc(&p, size);",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
        "CUBLAS failure 3: the resource allocation failed ; GPU=0 ; hostname=h ; expr=cublasCreate(&cublas_handle_);",
        "CUDNN failure 4004: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ; GPU=0",
        "CUDNN failure 4: CUDNN_STATUS_ALLOC_FAILED ; GPU=0",
    ],
)
def test_messages_about_memory_are_out_of_memory(message: str) -> None:
    """ONNX Runtime has no class for them."""
    with pytest.raises(OutOfMemory):
        raise_if_out_of_memory(RuntimeError(message))


@pytest.mark.parametrize(
    "message",
    [
        "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; expr=cudaStreamSynchronize(stream_);",
        "CUDA failure 25: x",
        "CUDA failure 214: uncorrectable ECC error encountered",
        "CUBLAS failure 13: the function failed to launch on the GPU",
        "CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED",
        "shape",
    ],
)
def test_other_messages_are_not_about_memory(message: str) -> None:
    """They are other errors of CUDA, or the caller's."""
    raise_if_out_of_memory(RuntimeError(message))


def test_a_session_on_the_cpu_runs(tmp_path: Path) -> None:
    """The placement of its nodes is logged for GPUs only."""
    path = write_doubler(tmp_path / "doubler.onnx")
    session = sessions(path, Device("cpu", 0, "a processor")).open()
    assert session.get_providers() == ["CPUExecutionProvider"]
    parts = session.get_provider_graph_assignment_info()
    assert [(part.ep_name, [node.op_type for node in part.get_nodes()]) for part in parts] == [
        ("CPUExecutionProvider", ["Mul"])
    ]


def test_onnx_runtime_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Failures of a load or a run are raised; an unused constant is no failure."""
    taken = helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])
    given = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    constants = [numpy_helper.from_array(np.ones(3, np.float32), name) for name in ("table", "unused")]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "x"], ["y"])], "g", [taken], [given], constants
    )
    path = tmp_path / "looking_up.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    cpu = Device("cpu", 0, "a processor")
    session = sessions(path, cpu).open()
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, {"x": np.array([7])})
    path.write_bytes(b"no model")
    with pytest.raises(LoadFailed):
        sessions(path, cpu).open()
    assert capfd.readouterr() == ("", "")


def test_a_session_of_one_size_gets_its_axes_weights_and_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the stream that it is given; the nodes that remain on the CPU are named."""
    opened: list[Any] = []

    def open_one(model: Any, options: Any, providers: Any, enable_fallback: int) -> Any:
        opened.append((options, dict(providers[0][1])))
        node = SimpleNamespace(op_type="NonZero", name="find")
        parts = [SimpleNamespace(ep_name="CPUExecutionProvider", get_nodes=lambda: [node])]
        return SimpleNamespace(
            get_providers=lambda: ["CUDAExecutionProvider"], get_provider_graph_assignment_info=lambda: parts
        )

    monkeypatch.setattr(onnx_sessions.onnxruntime, "InferenceSession", open_one)
    weight = onnxruntime.OrtValue.from_dlpack(np.ones(4, np.float32))
    fixed = FixedSize({"rows": 4}, {"w": weight}, 0.25)
    of_model = sessions(tmp_path / "x.onnx", acceleration=Acceleration(memory_mb=100))
    of_model.open_with_graphs(77, fixed)
    assert of_model.nodes_on_cpu(fixed) == ["NonZero 'find'"]
    (options, with_graphs), (_, without) = opened
    assert options.get_session_config_entry("session.disable_prepacking") == "1"
    assert (with_graphs["user_compute_stream"], with_graphs["gpu_mem_limit"]) == ("77", str(25 << 20))
    assert "user_compute_stream" not in without


def test_nodes_on_the_cpu_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The line has their number, the number of all nodes, and the operators."""
    caplog.set_level("INFO")
    session = sessions(write_doubler(tmp_path / "doubler.onnx"), Device("cpu", 0, "a processor")).open()
    onnx_sessions._log_placement("doubler", session)
    assert "doubler: 1 of 1 nodes run on the CPU, not on the GPU: Mul" in caplog.text


def test_a_gpu_that_onnx_runtime_does_not_use_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on with the CPU, without a word."""
    opened: list[tuple[Any, ...]] = []

    def open_one(model: Any, options: Any, providers: Any, enable_fallback: int) -> Any:
        opened.append(
            (model, [provider if isinstance(provider, str) else provider[0] for provider in providers])
        )
        assert enable_fallback == 0
        return SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])

    monkeypatch.setattr(onnx_sessions.onnxruntime, "InferenceSession", open_one)
    path = tmp_path / "doubler.onnx"
    with pytest.raises(DeviceUnavailable, match="did not use CUDAExecutionProvider on cuda:3 for doubler"):
        sessions(path).open()
    assert opened == [(str(path), ["CUDAExecutionProvider", "CPUExecutionProvider"])]


def test_a_model_that_does_not_fit_is_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights may be too large; any other error is a failed load."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(message)

    monkeypatch.setattr(onnx_sessions.onnxruntime, "InferenceSession", refuse)
    message = "Available memory of 512 is smaller than requested bytes of 4096"
    with pytest.raises(OutOfMemory):
        sessions(tmp_path / "x.onnx").open_with_graphs(2)
    message = "This session cannot use the graph capture feature as requested by the user"
    with pytest.raises(LoadFailed, match=r"cannot load .*x\.onnx: This session cannot use the graph capture"):
        sessions(tmp_path / "x.onnx").open_with_graphs(2)


def test_a_missing_library_of_tensorrt_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime would use the CUDA provider instead."""
    monkeypatch.setattr(onnx_sessions, "probe", lambda runtime: f"{runtime}: libnvinfer.so.10: cannot open")
    with pytest.raises(
        DeviceUnavailable, match=r"provider: tensorrt cannot be used: tensorrt: libnvinfer\.so\.10"
    ):
        sessions(tmp_path / "x.onnx", acceleration=Acceleration(provider="tensorrt")).open()
