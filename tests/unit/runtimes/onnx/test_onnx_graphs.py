"""The choice of a model's graph on a GPU: plain or fused, in the cache, in the log."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from tests.exported_attention import Form, write_attention
from tests.tiny_models import write_mlp

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.runtimes.base import ChosenRuntime, OutOfMemory
from stoker.runtimes.onnx import graphs as onnx_graphs
from stoker.runtimes.onnx.graphs import choose_graph, find_difference
from stoker.runtimes.onnx.loading import load_onnx
from stoker.runtimes.onnx.sessions import OnnxSessions
from stoker.settings.choices import Acceleration

GPU, CPU = Device("cuda", 0, "a GPU"), Device("cpu", 0, "a processor")


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path | bytes]:
    """Open sessions of the GPU on the CPU, and record their models."""
    models: list[Path | bytes] = []

    def open_session(sessions: OnnxSessions) -> onnxruntime.InferenceSession:
        models.append(sessions.model)
        return sessions.open_on_cpu(sessions.model)

    monkeypatch.setattr(OnnxSessions, "open", open_session)
    return models


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """A transformer with batches of 1 and 4 rows."""
    path = write_attention(tmp_path / "attention.onnx", Form(mask="keys"))
    return Deployment(
        "words", 1, "onnx", path, tmp_path, 4, 1024, batch_buckets=(1, 4), engine_cache=tmp_path / "engines"
    )


def taking_ms(*times: float) -> Callable[[], int]:
    """Return a clock by which runs take these times in turn: of the plain graph, and of the fused one."""
    now_ns = itertools.accumulate(each for ms in itertools.cycle(times) for each in (0, int(ms * 1e6)))
    return lambda: next(now_ns)


def is_fused(model: Path | bytes) -> bool:
    """Whether a graph has fused attention."""
    read = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
    return any(node.op_type == "MultiHeadAttention" for node in read.graph.node)


def test_fused_graph_is_chosen_if_it_is_faster(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """The log at level DEBUG has the times of both for the smallest and the largest batch."""
    caplog.set_level("DEBUG", "stoker.runtimes.onnx.graphs")
    graph = choose_graph(deployment, GPU, 1, taking_ms(3, 2))
    assert graph.is_fused
    assert is_fused(graph.model)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "DEBUG",
            "words: graph fused; ms for batches of 1 and 4 rows: plain 3.000 / 3.000, fused 2.000 / 2.000",
        )
    ]


def test_plain_graph_is_chosen_if_it_is_faster(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """`is_fused` is false, and the log says so."""
    caplog.set_level("DEBUG", "stoker.runtimes.onnx.graphs")
    graph = choose_graph(deployment, GPU, 1, taking_ms(2, 3))
    assert (graph.model, graph.is_fused) == (deployment.path, False)
    assert "words: graph plain; ms for batches" in caplog.messages[0]


def test_choice_and_graph_are_cached(
    deployment: Deployment, opened: list[Path | bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start neither fuses nor measures; the cache is for one version of ONNX Runtime."""
    first = choose_graph(deployment, GPU, 1, taking_ms(3, 2)).model
    assert len(opened) == 2
    monkeypatch.setattr(onnx_graphs, "fuse_graph", lambda *_: pytest.fail("it was fused again"))
    assert choose_graph(deployment, GPU, 1).model == first
    assert len(opened) == 2
    (folder,) = (deployment.engine_cache or Path()).iterdir()
    assert onnxruntime.__version__ in folder.name


def test_another_gpu_and_another_precision_are_measured(
    deployment: Deployment, opened: list[Path | bytes]
) -> None:
    """The cached choice is for one GPU and one precision."""
    choose_graph(deployment, GPU, 1, taking_ms(3, 2))
    other = msgspec.structs.replace(GPU, description="another GPU")
    assert choose_graph(deployment, other, 1, taking_ms(2, 3)).model == deployment.path
    assert len(opened) == 4
    half = dataclasses.replace(deployment, acceleration=Acceleration(precision="fp16"))
    graph = choose_graph(half, GPU, 1, taking_ms(3, 2)).model
    assert is_fused(graph)
    assert isinstance(graph, bytes)
    weights = onnx.load_from_string(graph).graph.initializer
    assert onnx.TensorProto.FLOAT16 in {tensor.data_type for tensor in weights}
    assert len(opened) == 6


def test_unreadable_choice_leaves_the_plain_graph(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """The model loads all the same."""
    caplog.set_level("INFO")
    choose_graph(deployment, GPU, 1, taking_ms(3, 2))
    (folder,) = (deployment.engine_cache or Path()).iterdir()
    for file in folder.glob("*.json"):
        file.write_text("{")
    assert choose_graph(deployment, GPU, 1).model == deployment.path
    assert "words: optimize: auto does not change the graph: " in caplog.messages[-1]


def test_fused_graph_that_answers_differently_is_left_out(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its speed does not matter; one line has the difference."""
    caplog.set_level("INFO")
    wrong = write_attention(deployment.path.parent / "wrong.onnx", Form(mask="keys", gelu=True))
    monkeypatch.setattr(onnx_graphs, "fuse_graph", lambda *_: wrong.read_bytes())
    assert choose_graph(deployment, GPU, 1, taking_ms(3, 2)).model == deployment.path
    (line,) = caplog.messages
    assert line.startswith("words: the fused graph is left out: its outputs differ by ")


def test_usual_sizes_are_measured_without_buckets(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """They are one row, and the rows of a usual batch."""
    caplog.set_level("DEBUG", "stoker.runtimes.onnx.graphs")
    unknown = dataclasses.replace(deployment, batch_buckets=None, max_batch_rows=256)
    assert is_fused(choose_graph(unknown, GPU, 1, taking_ms(3, 2)).model)
    assert "ms for batches of 1 and 32 rows: plain 3.000 / 3.000" in caplog.messages[0]


def test_sizes_without_memory_are_not_measured(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The smaller sizes decide."""
    caplog.set_level("DEBUG", "stoker.runtimes.onnx.graphs")
    run = onnx_graphs.run_session

    def short_of_memory(
        session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        if len(feeds["x"]) == 4:
            raise OutOfMemory("no memory for 4 rows")
        return run(session, feeds)

    monkeypatch.setattr(onnx_graphs, "run_session", short_of_memory)
    assert is_fused(choose_graph(deployment, GPU, 1, taking_ms(3, 2)).model)
    assert caplog.messages[0].endswith("plain 3.000, fused 2.000")


def test_optimize_off_opens_no_session(deployment: Deployment, opened: list[Path | bytes]) -> None:
    """The file itself is loaded."""
    off = dataclasses.replace(deployment, acceleration=Acceleration(optimize="off"))
    assert choose_graph(off, GPU, 1).model == deployment.path
    assert not opened


def test_models_without_attention_open_no_session(
    deployment: Deployment, tmp_path: Path, opened: list[Path | bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """Models on the CPU open none either, and the log has no line."""
    caplog.set_level("INFO")
    path = write_mlp(tmp_path / "mlp.onnx")
    assert choose_graph(dataclasses.replace(deployment, path=path), GPU, 1).model == path
    assert choose_graph(deployment, CPU, 1).model == deployment.path
    assert not opened
    assert not caplog.messages


def test_model_that_refuses_made_up_rows_keeps_its_graph(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line has the model's message."""
    caplog.set_level("INFO")

    def refuse(*_: object) -> None:
        raise LoadFailed("rows of 2, please")

    monkeypatch.setattr(onnx_graphs, "fuse_graph", refuse)
    assert choose_graph(deployment, GPU, 1).model == deployment.path
    assert caplog.messages == ["words: optimize: auto does not change the graph: rows of 2, please"]


def test_row_isolation_is_read_from_the_plain_graph(deployment: Deployment) -> None:
    """A fused model is batched as a plain one."""
    acceleration = Acceleration(execution="copied")
    (deployment.engine_cache or Path()).mkdir()
    loaded = load_onnx(dataclasses.replace(deployment, acceleration=acceleration), GPU, 1)
    assert loaded.signature.isolation is not None
    assert loaded.signature.isolation.batched
    assert loaded.signature.isolation.how == "read"
    (choice,) = [
        json.loads(file.read_text()) for file in (deployment.engine_cache or Path()).glob("*/tf32-*.json")
    ]
    assert isinstance(loaded, ChosenRuntime)
    graph = "fused" if choice["fused"] else "plain"
    assert loaded.choice.startswith(f"execution copied; graph {graph}; precision tf32, outputs ")


def test_second_load_neither_converts_nor_compares(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The findings of an earlier load of the same files for the same GPU are read from the cache."""
    deployment = dataclasses.replace(deployment, acceleration=Acceleration(precision="fp16", optimize="off"))
    first = choose_graph(deployment, GPU, 1)
    differences = iter([0.001, 0.002])
    assert find_difference(deployment, GPU, lambda: next(differences)) == 0.001

    def convert_again(*_: object) -> bytes:
        raise AssertionError("it was converted before")

    monkeypatch.setattr(onnx_graphs, "convert", convert_again)
    assert choose_graph(deployment, GPU, 1).model == first.model
    assert find_difference(deployment, GPU, lambda: next(differences)) == 0.001
    another = Device("cuda", 0, "another GPU")
    assert find_difference(deployment, another, lambda: next(differences)) == 0.002
