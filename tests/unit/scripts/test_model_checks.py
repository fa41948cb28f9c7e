"""Scripts are not batched if a model that they call lets rows influence each other."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.unit.scripts.checks import TWO_ROWS, merge, sample_of
from tests.zoo import ZOO

from stoker.scripts.gathered_calls import GatheredCalls
from stoker.scripts.gathering_check import check_gathering
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.model_checks import dynamically_quantised
from stoker.scripts.self_check import Disproved

pytestmark = pytest.mark.usefixtures("without_flask")

SESSION = onnxruntime.InferenceSession


def answers(session: SESSION) -> Callable[[Any], Any]:
    name = session.get_inputs()[0].name
    return lambda rows: session.run(None, {name: np.array(rows, np.float32)})[0].tolist()


@pytest.fixture(params=["a file", "bytes"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], SESSION]:
    """A function that opens a model as scripts do."""

    def open_model(content: bytes) -> SESSION:
        file = tmp_path / f"{len(content)}.onnx"
        file.write_bytes(content)
        return SESSION(str(file) if request.param == "a file" else content)

    return open_model


def test_a_dynamically_quantised_model_is_not_merged(opened: Callable[[bytes], SESSION]) -> None:
    """The reason names the operator that takes its scale from all rows; a model with constant scales is merged."""
    mixing, apart = (opened(make()) for make in ZOO["dynamic int8"])
    size = apart.get_inputs()[0].shape[1]
    rows = np.random.default_rng(3).random((2, size)).tolist()
    with pytest.raises(Disproved, match=r"InferenceSession.run: DynamicQuantizeLinear"):
        merge(answers(mixing), *rows)
    merge(answers(apart), *rows)


def test_a_dynamically_quantised_model_is_not_gathered(opened: Callable[[bytes], SESSION]) -> None:
    """The reason is the same; the model with constant scales is gathered."""
    mixing, apart = (opened(make()) for make in ZOO["dynamic int8"])
    rows = np.random.default_rng(3).random((2, apart.get_inputs()[0].shape[1])).tolist()

    def gather(session: SESSION) -> list[str]:
        calls = ScriptCalls(lambda raw_data: answers(session)(json.loads(raw_data)["data"]))
        gathered = GatheredCalls(calls, max_rows=8, max_threads=4)
        try:
            return check_gathering(calls, sample_of({"data": rows}), gathered, 8)
        finally:
            gathered.close()

    with pytest.raises(Disproved, match=r"InferenceSession.run: DynamicQuantizeLinear"):
        gather(mixing)
    assert gather(apart) == ["InferenceSession.run"]


@pytest.fixture
def torch_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """A class with the module name of a dynamically quantised layer of PyTorch."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    made = type("Linear", (), {})
    made.__module__ = "torch.ao.nn.quantized.dynamic.modules.linear"
    return made


def test_modules_that_quantise_by_the_batch_are_found(torch_module: type) -> None:
    """They are found wherever the script keeps them."""
    assert dynamically_quantised() is None
    model = {"layers": [torch_module()]}
    assert dynamically_quantised() == "torch.ao.nn.quantized.dynamic.modules.linear.Linear"
    with pytest.raises(Disproved, match=r"the script has loaded torch\.ao\.nn\.quantized\.dynamic"):
        merge(lambda rows: [sum(row) for row in rows], *TWO_ROWS)
    assert model


@pytest.mark.usefixtures("no_collections")
def test_modules_that_are_no_longer_used_do_not_count(torch_module: type) -> None:
    """They do not count even before their cycles are collected."""
    model = {"layers": [torch_module()]}
    model["layers"].append(model)
    del model
    assert dynamically_quantised() is None
