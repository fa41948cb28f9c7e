"""Scripts beside companions: where rows see each other, in the script or in a model that it calls, none is merged."""

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
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY
from tests.zoo import ZOO

from stoker.scripts.batching import check_gathering, check_merging, companions_of
from stoker.scripts.handles import GatheredCalls
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.self_check import Disproved, Sample, dynamically_quantised
from stoker.wire.script_requests import row_texture

pytestmark = pytest.mark.usefixtures("without_flask")


def sample_of(*rows: Any) -> Sample:
    return Sample(json.dumps({"data": list(rows)}).encode(), "application/json", "the sample")


def merge(run: Callable[[Any], Any], *rows: Any) -> None:
    """Check a script that gets the rows."""
    check_merging(ScriptCalls(lambda raw_data: run(json.loads(raw_data)["data"])), sample_of(*rows), 16)


NUMBERS = ([0.1, 0.2, 0.3, 0.4], [0.9, 0.1, 0.5, 0.2])
TEXTS = (["a word"], ["another word here"])
SESSION = onnxruntime.InferenceSession


def answers(session: SESSION) -> Callable[[Any], Any]:
    name = session.get_inputs()[0].name
    return lambda rows: session.run(None, {name: np.array(rows, np.float32)})[0].tolist()


@pytest.fixture(params=["a file", "bytes"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], SESSION]:
    """Opens a model as scripts do."""

    def open_model(content: bytes) -> SESSION:
        file = tmp_path / f"{len(content)}.onnx"
        file.write_bytes(content)
        return SESSION(str(file) if request.param == "a file" else content)

    return open_model


def test_a_dynamically_quantised_model_is_not_merged(opened: Callable[[bytes], SESSION]) -> None:
    """The reason names the operator that takes its scale from all rows; its twin with constant scales is merged."""
    mixing, apart = (opened(make()) for make in ZOO["dynamic int8"])
    size = apart.get_inputs()[0].shape[1]
    rows = np.random.default_rng(3).random((2, size)).tolist()
    with pytest.raises(Disproved, match=r"InferenceSession.run: DynamicQuantizeLinear"):
        merge(answers(mixing), *rows)
    merge(answers(apart), *rows)


def test_a_dynamically_quantised_model_is_not_gathered(opened: Callable[[bytes], SESSION]) -> None:
    """Nor are the calls to it made as one."""
    mixing, apart = (opened(make()) for make in ZOO["dynamic int8"])
    rows = np.random.default_rng(3).random((2, apart.get_inputs()[0].shape[1])).tolist()

    def gather(session: SESSION) -> list[str]:
        calls = ScriptCalls(lambda raw_data: answers(session)(json.loads(raw_data)["data"]))
        gathered = GatheredCalls(calls, max_rows=8, max_threads=4)
        try:
            return check_gathering(calls, sample_of(*rows), gathered, 8)
        finally:
            gathered.close()

    with pytest.raises(Disproved, match=r"InferenceSession.run: DynamicQuantizeLinear"):
        gather(mixing)
    assert gather(apart) == ["InferenceSession.run"]


def longest(rows: list[list[str]]) -> int:
    return max(len(text) for (text,) in rows)


@pytest.mark.parametrize(
    ("mixing", "apart", "rows"),
    [
        (
            lambda rows: (np.array(rows) + 1e-6 * np.mean(rows, axis=0)).tolist(),
            lambda rows: (np.array(rows) + 1e-6 * np.mean(rows, axis=1, keepdims=True)).tolist(),
            NUMBERS,
        ),
        (
            lambda rows: [[-sum(row)] if np.sum(rows) > 100 else [sum(row)] for row in rows],
            lambda rows: [[-sum(row)] if sum(row) > 100 else [sum(row)] for row in rows],
            NUMBERS,
        ),
        (
            lambda rows: [len(text) / max(64, longest(rows)) for (text,) in rows],
            lambda rows: [len(text) / 64 for (text,) in rows],
            TEXTS,
        ),
        (
            # Too large for a float32: infinite, and then not a number, for everybody.
            lambda rows: (np.array(rows) - 0 * np.sum(np.array(rows, np.float32))).tolist(),
            lambda rows: (np.array(rows) - 0 * np.sum(np.array(rows, np.float32), 1, keepdims=True)).tolist(),
            NUMBERS,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scripts_whose_rows_see_each_other_are_not_merged(
    mixing: Callable[[Any], Any], apart: Callable[[Any], Any], rows: tuple[Any, ...]
) -> None:
    """However little they see, and only beside what is far from ordinary; their twins are merged."""
    with pytest.raises(Disproved, match="a merged request gets another answer"):
        merge(mixing, *rows)
    merge(apart, *rows)


def test_row_that_a_script_refuses_does_not_disprove_it() -> None:
    """A row for which a script raises says nothing about batching."""

    def picky(rows: Any) -> Any:
        if np.abs(rows).max() > 10:
            raise ValueError("too large")
        return np.sum(rows, axis=1).tolist()

    merge(picky, *NUMBERS)


def test_a_script_that_never_answers_alike_is_not_merged() -> None:
    """Merged requests that are equal have to get equal answers; what is behind the noise could not be seen."""
    turns = iter(range(10**6))

    def noisy(rows: Any) -> Any:
        return [sum(row) * (1 + 1e-7 * (next(turns) if len(rows) > 1 else 0)) for row in rows]

    with pytest.raises(Disproved, match="equal merged requests got different answers"):
        merge(noisy, *NUMBERS)


@given(
    st.recursive(
        st.booleans() | st.integers(-1000, 1000) | st.floats(0, 1) | st.text(max_size=5) | st.none(),
        lambda values: st.lists(values, max_size=3),
        max_leaves=6,
    )
)
@STEADY
def test_companions_have_the_types_of_the_row(row: Any) -> None:
    """Only such are merged with it; each differs from it, and all can be sent."""
    texture = row_texture(json.dumps({"data": [row]}).encode())
    for _, made in companions_of(row):
        assert made != row
        assert row_texture(json.dumps({"data": [made]}, allow_nan=False).encode()) == texture


@pytest.fixture
def torch_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """A class that PyTorch could have made."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    made = type("Linear", (), {})
    made.__module__ = "torch.ao.nn.quantized.dynamic.modules.linear"
    return made


def test_modules_that_quantise_by_the_batch_are_found(torch_module: type) -> None:
    """Wherever the script keeps them; without one nothing is said."""
    assert dynamically_quantised() is None
    model = {"layers": [torch_module()]}
    assert dynamically_quantised() == "torch.ao.nn.quantized.dynamic.modules.linear.Linear"
    with pytest.raises(Disproved, match=r"the script has loaded torch\.ao\.nn\.quantized\.dynamic"):
        merge(lambda rows: [sum(row) for row in rows], *NUMBERS)
    assert model


@pytest.mark.usefixtures("no_collections")
def test_modules_that_were_thrown_away_do_not_count(torch_module: type) -> None:
    """Although their cycles may not have been collected yet."""
    model = {"layers": [torch_module()]}
    model["layers"].append(model)
    del model
    assert dynamically_quantised() is None
