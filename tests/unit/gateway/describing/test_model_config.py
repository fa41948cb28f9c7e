"""A model's configuration as Triton has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.puppets import puppet_service

from stoker.errors import NotReady
from stoker.gateway.describing.model_config import model_config
from stoker.gateway.scoring.facts import ServiceFacts
from stoker.hosting import Hosting
from stoker.tensors import Signature, TensorSpec
from stoker.verdict import Verdict

ROWS = Signature((TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "int64", ()),))


def configured(hosting: Hosting, signature: Signature = ROWS) -> dict[str, Any]:
    service = puppet_service("digits")
    service.facts = ServiceFacts("digits", "3", "onnx", hosting=hosting)
    service.signature = signature
    return model_config(service, ["10", "3"])


def test_where_it_runs_and_in_what_batches() -> None:
    """A group for each device with all instances there; buckets are the sizes that the model prefers."""
    told = configured(Hosting(("cuda:1", "cpu", "cuda:1", "GPU-7"), 2, 64, 0.25, (8, 64)))
    assert told["instance_group"] == [
        {"name": "digits_0", "kind": "KIND_GPU", "count": 4, "gpus": [1]},
        {"name": "digits_1", "kind": "KIND_CPU", "count": 2},
        {"name": "digits_2", "kind": "KIND_GPU", "count": 2},
    ]
    assert told["max_batch_size"] == 64
    assert told["dynamic_batching"] == {"preferred_batch_size": [8, 64], "max_queue_delay_microseconds": 250}
    assert told["version_policy"] == {"specific": {"versions": [3, 10]}}


def test_rows_that_see_each_other_are_not_batched() -> None:
    """Such a model takes several rows in one request, but none of another one beside them."""
    verdict = Verdict(False, "read", "Softmax 'y' goes over the rows of the batch")
    told = configured(Hosting(("cpu",), max_batch_rows=16), replace(ROWS, verdict=verdict))
    assert (told["max_batch_size"], "dynamic_batching" in told) == (16, False)


def test_a_model_that_is_loading_has_none_yet() -> None:
    """Its tensors are known once it has been loaded: 503, and when to ask again."""
    with pytest.raises(NotReady, match="digits"):
        model_config(puppet_service("digits"), [])
