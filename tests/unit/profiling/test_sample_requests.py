"""Sample requests of a model: made from its sample or its signature, or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.puppets import ROWS, PuppetRuntime
from tests.text_models import write_tokenizer

from stoker.deployment import Deployment
from stoker.device.batch_sizes import BatchSizes
from stoker.device.loaded_model import LoadedModel
from stoker.errors import InvalidSettings, LoadFailed
from stoker.profiling.sample_requests import SampleRequest, make_request, prepare_batches
from stoker.runtimes.base import RowFailure
from stoker.script_form import ScriptForm
from stoker.settings.text_input import TextInput
from stoker.tensors import ModelTensors, Signature, TensorInfo, TensorSpec
from stoker.wire.packed import unpack
from stoker.wire.texts import text_tensors

FREE = Signature(
    (),
    (),
    takes="tensors",
    tensors=ModelTensors(
        (TensorInfo("x", "float32", (-1, 2)),), (TensorInfo("y", "float32", (-1, 2)),), batched=False
    ),
)
"""Requests of any number of rows, which the model takes whole."""


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """A model without a sample."""
    return Deployment("digits", 1, "onnx", tmp_path / "digits.onnx", tmp_path, 8, 64)


def load(signature: Signature = ROWS, sample: dict[str, np.ndarray] | None = None) -> LoadedModel:
    """A puppet with this signature."""
    return LoadedModel(PuppetRuntime(signature), 0, 0, 8, BatchSizes(), 1, None, sample)


def write_sample(deployment: Deployment, rows: list[list[float]]) -> None:
    (deployment.path.parent / "sample_input.json").write_text(
        json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": rows}]})
    )


def test_rows_of_a_sample_are_sent(deployment: Deployment) -> None:
    """The note names the sample's file, and the rows are the sample's, not random ones."""
    write_sample(deployment, [[1, 2], [3, 4]])
    sample = {"x": np.array([[1, 2], [3, 4]], np.float32)}
    request = make_request(load(sample=sample), deployment, 2)
    assert request.note == "2 rows of sample_input.json, binary"
    assert request.body.endswith(sample["x"].tobytes())
    assert not request.packed


def test_a_model_of_free_sizes_needs_a_sample(deployment: Deployment) -> None:
    """Without a sample the request is refused; with one, its packed form fills batches."""
    with pytest.raises(InvalidSettings, match="takes tensors of free sizes"):
        make_request(load(FREE), deployment, 1)
    write_sample(deployment, [[1, 2], [3, 4]])
    with pytest.raises(InvalidSettings, match="leave --rows out"):
        make_request(load(FREE), deployment, 2)
    request = make_request(load(FREE), deployment, 1)
    assert request.note == "the request of sample_input.json, binary"
    assert unpack(request.packed)["x"].tolist() == [[1, 2], [3, 4]]


def test_batches_of_rows_are_made_up(deployment: Deployment) -> None:
    """A batch of three rows has three rows of zeros."""
    loaded = load()
    begin = prepare_batches(loaded, deployment, SampleRequest("/"))
    begin(loaded.runtime, 3)()
    assert loaded.runtime.batches == [[[0, 0]] * 3]


def test_batches_of_whole_requests_repeat_the_sample(deployment: Deployment) -> None:
    """The sample is run once before, so that a model which refuses it is not measured."""
    loaded = load(FREE)
    begin = prepare_batches(loaded, deployment, SampleRequest("/", packed=b"whole"))
    loaded.runtime.answer = lambda inputs: [[b"answer"] * len(inputs[0])]
    begin(loaded.runtime, 3)()
    assert loaded.runtime.batches == [[b"whole"], [b"whole"] * 3]


def test_a_sample_that_the_model_refuses_is_reported(deployment: Deployment) -> None:
    """The error names the model and the reason."""
    loaded = load(FREE)
    loaded.runtime.answer = lambda _: [[RowFailure(ValueError("too short"))]]
    with pytest.raises(LoadFailed, match="digits fails on its sample: too short"):
        prepare_batches(loaded, deployment, SampleRequest("/", packed=b"whole"))


def test_a_script_without_a_sample_is_refused(deployment: Deployment) -> None:
    """Only the author of a script knows the bodies that it takes."""
    script = Signature((), (), takes="body", script=ScriptForm())
    with pytest.raises(InvalidSettings, match="digits is a script"):
        make_request(load(script), deployment, 1)


def test_texts_are_sent_as_texts(tmp_path: Path) -> None:
    """The request of a model that takes texts has those of its sample, or sentences, and no tokens."""
    write_tokenizer(tmp_path)
    text = TextInput(tmp_path / "tokenizer.json", 16)
    model = Deployment("m", 1, "onnx", tmp_path / "model.onnx", tmp_path, 8, 64, text=text)
    row = (TensorSpec("text", "int32", (17,)),)
    signature = Signature(row, (TensorSpec("y", "float32", (2,)),), callers=text_tensors(()))
    assert b"How far is it?" in make_request(load(signature), model, 1).body
    (tmp_path / "sample_input.json").write_text('{"data": ["stones", "birds"]}')
    request = make_request(load(signature), model, 3)
    assert request.note == "3 rows of sample_input.json, binary"
    assert request.body.endswith(b"stones\5\0\0\0birds\6\0\0\0stones")
