"""A model's configuration as Triton has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from tests.puppets import puppet_service
from tritonclient.grpc import model_config_pb2

from stoker.deployment import Deployment
from stoker.errors import NotReady
from stoker.gateway.describing.model_config import model_config
from stoker.gateway.scoring.service_facts import ServiceFacts
from stoker.row_isolation import RowIsolation
from stoker.sequence_steps import Control
from stoker.settings.sequence import SequenceSettings, StateTensor
from stoker.tensors import Signature, TensorSpec

ROWS = Signature((TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "int64", ()),))


def configured(signature: Signature = ROWS, **settings: Any) -> dict[str, Any]:
    rows = settings.pop("max_batch_rows", 1)
    deployment = Deployment("digits", 3, "onnx", Path("digits.onnx"), Path(), rows, 1 << 20, **settings)
    service = puppet_service("digits")
    service.facts = ServiceFacts("digits", "3", "onnx", deployment=deployment)
    service.signature = signature
    return model_config(service, ["10", "3"])


def test_model_config_has_instances_and_batches() -> None:
    """A group for each device with all instances there; buckets are the sizes that the model prefers."""
    config = configured(
        devices=("cuda:1", "cpu", "cuda:1", "GPU-7", "cuda:0+cuda:2"),
        instances=2,
        max_batch_rows=64,
        max_delay_ms=0.25,
        batch_buckets=(8, 64),
    )
    assert config["instance_group"] == [
        {"name": "digits_0", "kind": "KIND_GPU", "count": 4, "gpus": [1]},
        {"name": "digits_1", "kind": "KIND_CPU", "count": 2},
        {"name": "digits_2", "kind": "KIND_GPU", "count": 2},
        {"name": "digits_3", "kind": "KIND_GPU", "count": 2, "gpus": [0, 2]},
    ]
    assert config["max_batch_size"] == 64
    assert config["dynamic_batching"] == {
        "preferred_batch_size": [8, 64],
        "max_queue_delay_microseconds": 250,
    }
    assert config["version_policy"] == {"specific": {"versions": [3, 10]}}


def test_rows_that_see_each_other_are_not_batched() -> None:
    """Such a model takes several rows in one request, but none of another one beside them."""
    isolation = RowIsolation(False, "read", "Softmax 'y' goes over the rows of the batch")
    config = configured(replace(ROWS, isolation=isolation), max_batch_rows=16)
    assert (config["max_batch_size"], "dynamic_batching" in config) == (16, False)


def test_a_model_that_is_loading_has_none_yet() -> None:
    """Its tensors are known once it has been loaded: 503, and when to ask again."""
    with pytest.raises(NotReady, match="digits"):
        model_config(puppet_service("digits"), [])


def test_sequence_settings_of_a_model_are_in_its_configuration() -> None:
    """The configuration describes controls and states; an initial state names its file."""
    controls = (
        Control("START", "start", "int32"),
        Control("END", "end", "float32", 0, 2.5),
        Control("READY", "ready", "bool"),
        Control("CORRID", "id", "uint64"),
    )
    settings = SequenceSettings((StateTensor("h", "hn", (2,), initial=Path("/models/m/h0.bin")),))
    config = configured(replace(ROWS, sequences=True, controls=controls), sequence=settings)
    batching = config["sequence_batching"]
    assert batching["control_input"] == [
        {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}]},
        {"name": "END", "control": [{"kind": "CONTROL_SEQUENCE_END", "fp32_false_true": [0, 2.5]}]},
        {"name": "READY", "control": [{"kind": "CONTROL_SEQUENCE_READY", "bool_false_true": [False, True]}]},
        {"name": "CORRID", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}]},
    ]
    (state,) = batching["state"]
    assert (state["dims"], state["initial_state"]) == ([2], [{"name": "h0", "data_file": "h0.bin"}])
    texts = replace(ROWS, sequences=True, controls=(Control("CORRID", "id", "string"),))
    config = configured(texts, sequence=SequenceSettings())
    (control,) = config["sequence_batching"]["control_input"]
    assert control["control"][0]["data_type"] == "TYPE_STRING"
    for document in (config, {"name": "m", "sequence_batching": batching}):
        assert ParseDict(
            document, model_config_pb2.ModelConfig(), ignore_unknown_fields=False
        ).sequence_batching
