"""Which graph of a model is loaded on a GPU: fused where that is faster, kept in the workspace, said in the log."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path

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
from stoker.runtimes.onnx.graphs import graph_of
from stoker.runtimes.onnx.loading import load_onnx
from stoker.runtimes.onnx.sessions import OnnxSessions
from stoker.settings.choices import Acceleration

GPU, CPU = Device("cuda", 0, "a GPU"), Device("cpu", 0, "a processor")


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path | bytes]:
    """What was opened on the GPU, whose part the CPU plays."""
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
    """A clock by which runs take these times in turn: of the graph as it is, and of the fused one."""
    now_ns = itertools.accumulate(each for ms in itertools.cycle(times) for each in (0, int(ms * 1e6)))
    return lambda: next(now_ns)


def is_fused(model: Path | bytes) -> bool:
    """Whether a graph has fused attention."""
    read = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
    return any(node.op_type == "MultiHeadAttention" for node in read.graph.node)


def test_the_faster_graph_is_taken(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    """By the times of both for the smallest and the largest batch, which only a verbose log has."""
    caplog.set_level("DEBUG", "stoker.runtimes.onnx.graphs")
    graph = graph_of(deployment, GPU, 1, taking_ms(3, 2))
    assert graph.is_fused
    assert is_fused(graph.model)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "DEBUG",
            "words: graph fused; ms for batches of 1 and 4 rows: as it is 3.000 / 3.000, fused 2.000 / 2.000",
        )
    ]


def test_the_graph_as_it_is_stays_where_it_is_faster(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer says so, for the line of what was chosen."""
    caplog.set_level("DEBUG", "stoker.runtimes.onnx.graphs")
    graph = graph_of(deployment, GPU, 1, taking_ms(2, 3))
    assert (graph.model, graph.is_fused) == (deployment.path, False)
    assert "words: graph as it is; ms for batches" in caplog.messages[0]


def test_the_choice_and_the_graph_are_kept(
    deployment: Deployment, opened: list[Path | bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By versions: the next start makes and times nothing."""
    first = graph_of(deployment, GPU, 1, taking_ms(3, 2)).model
    assert len(opened) == 2
    monkeypatch.setattr(onnx_graphs, "fuse_graph", lambda *_: pytest.fail("it was made again"))
    assert graph_of(deployment, GPU, 1).model == first
    assert len(opened) == 2
    (folder,) = (deployment.engine_cache or Path()).iterdir()
    assert onnxruntime.__version__ in folder.name


def test_another_gpu_and_another_precision_are_timed_anew(
    deployment: Deployment, opened: list[Path | bytes]
) -> None:
    """The graph is the same; how fast it is may not be."""
    graph_of(deployment, GPU, 1, taking_ms(3, 2))
    other = dataclasses.replace(GPU, description="another GPU")
    assert graph_of(deployment, other, 1, taking_ms(2, 3)).model == deployment.path
    assert len(opened) == 4
    half = dataclasses.replace(deployment, acceleration=Acceleration(precision="fp16"))
    graph = graph_of(half, GPU, 1, taking_ms(3, 2)).model
    assert is_fused(graph)
    assert isinstance(graph, bytes)
    weights = onnx.load_from_string(graph).graph.initializer
    assert onnx.TensorProto.FLOAT16 in {tensor.data_type for tensor in weights}
    assert len(opened) == 6


def test_unreadable_kept_graph_choice_is_replaced(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """A stored choice that cannot be read does not keep a model from loading."""
    caplog.set_level("INFO")
    graph_of(deployment, GPU, 1, taking_ms(3, 2))
    (folder,) = (deployment.engine_cache or Path()).iterdir()
    for file in folder.glob("*.json"):
        file.write_text("{")
    assert graph_of(deployment, GPU, 1).model == deployment.path
    assert "words: optimize: auto leaves the graph as it is: " in caplog.messages[-1]


def test_a_graph_that_answers_otherwise_is_left_out(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its speed; one line says by how much."""
    caplog.set_level("INFO")
    wrong = write_attention(deployment.path.parent / "wrong.onnx", Form(mask="keys", gelu=True))
    monkeypatch.setattr(onnx_graphs, "fuse_graph", lambda *_: wrong.read_bytes())
    assert graph_of(deployment, GPU, 1, taking_ms(3, 2)).model == deployment.path
    (told,) = caplog.messages
    assert told.startswith("words: the fused graph is left out: its outputs differ by ")


def test_batches_of_usual_sizes_are_timed_where_sizes_are_chosen_later(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """One row, and as many as a batch usually has."""
    caplog.set_level("DEBUG", "stoker.runtimes.onnx.graphs")
    unknown = dataclasses.replace(deployment, batch_buckets=None, max_batch_rows=256)
    assert is_fused(graph_of(unknown, GPU, 1, taking_ms(3, 2)).model)
    assert "ms for batches of 1 and 32 rows: as it is 3.000 / 3.000" in caplog.messages[0]


def test_sizes_without_memory_are_not_timed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The smaller ones decide."""
    caplog.set_level("DEBUG", "stoker.runtimes.onnx.graphs")
    run = onnx_graphs._run

    def short_of_memory(
        session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        if len(feeds["x"]) == 4:
            raise OutOfMemory("no memory for 4 rows")
        return run(session, feeds)

    monkeypatch.setattr(onnx_graphs, "_run", short_of_memory)
    assert is_fused(graph_of(deployment, GPU, 1, taking_ms(3, 2)).model)
    assert caplog.messages[0].endswith("as it is 3.000, fused 2.000")


def test_optimize_off_looks_at_nothing(deployment: Deployment, opened: list[Path | bytes]) -> None:
    """The file is loaded as it is."""
    off = dataclasses.replace(deployment, acceleration=Acceleration(optimize="off"))
    assert graph_of(off, GPU, 1).model == deployment.path
    assert not opened


def test_models_without_attention_cost_nothing(
    deployment: Deployment, tmp_path: Path, opened: list[Path | bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does any model on the CPU, and no line is written."""
    caplog.set_level("INFO")
    path = write_mlp(tmp_path / "mlp.onnx")
    assert graph_of(dataclasses.replace(deployment, path=path), GPU, 1).model == path
    assert graph_of(deployment, CPU, 1).model == deployment.path
    assert not opened
    assert not caplog.messages


def test_a_model_that_takes_no_made_up_rows_stays_as_it_is(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line gives the model's words."""
    caplog.set_level("INFO")

    def refuse(*_: object) -> None:
        raise LoadFailed("rows of 2, please")

    monkeypatch.setattr(onnx_graphs, "fuse_graph", refuse)
    assert graph_of(deployment, GPU, 1).model == deployment.path
    assert caplog.messages == ["words: optimize: auto leaves the graph as it is: rows of 2, please"]


def test_rows_of_a_fused_model_are_batched_as_before(deployment: Deployment) -> None:
    """Row isolation is read from the graph of the file, whatever is made of it."""
    acceleration = Acceleration(execution="copied")
    (deployment.engine_cache or Path()).mkdir()
    loaded = load_onnx(dataclasses.replace(deployment, acceleration=acceleration), GPU, 1)
    assert loaded.signature.isolation is not None
    assert loaded.signature.isolation.batched
    assert loaded.signature.isolation.how == "read"
    (kept,) = [json.loads(file.read_text()) for file in (deployment.engine_cache or Path()).glob("*/*.json")]
    assert isinstance(loaded, ChosenRuntime)
    graph = "fused" if kept["fused"] else "as it is"
    assert loaded.choice.startswith(f"execution copied; graph {graph}; precision tf32, outputs ")
