"""The entry-script contract: what a script must have, what is said where it has not, and how answers are written."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

import stoker
from stoker.batched import BatchedInput, batched_input
from stoker.entry_script import EntryScript, encode_result, encode_rows
from stoker.errors import LoadFailed

Load = Callable[..., EntryScript]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A model folder with two files."""
    folder = tmp_path / "weights"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"1")
    (folder / "deep" / "labels.txt").write_text("x")
    return folder


@pytest.fixture
def load(tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Load a script with this text; what loading does to the process is undone afterwards."""
    monkeypatch.setenv("AZUREML_MODEL_DIR", "")
    monkeypatch.setenv("AZUREML_ENTRY_SCRIPT", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "scripts" / "score.py"
    script.parent.mkdir()

    def load(text: str, folder: Path = model_dir, path: Path = script) -> EntryScript:
        script.write_text(text)
        return EntryScript(path, folder)

    yield load
    sys.modules.pop("entry_module", None)


def refusal(load: Load, text: str, **options: Path) -> str:
    """The message with which a script is refused."""
    with pytest.raises(LoadFailed) as refused:
        load(text, **options)
    return str(refused.value)


def test_a_script_is_executed_and_initialised_once(load: Load, model_dir: Path) -> None:
    """`init` runs at load, finds the model folder, and `run` sees what it has set up."""
    script = load(
        """
import os
calls = []
def init():
    calls.append(os.environ["AZUREML_MODEL_DIR"])
def run(raw_data):
    return [calls, raw_data]
"""
    )
    assert script.run("body") == [[str(model_dir)], "body"]
    assert script.batched is None
    assert os.environ["AZUREML_ENTRY_SCRIPT"].endswith("score.py")


def test_a_script_may_import_its_neighbours(load: Load, tmp_path: Path) -> None:
    """Modules beside the script are found, as on Azure."""
    (tmp_path / "scripts" / "neighbour_of_score.py").write_text("ANSWER = 42\n")
    text = "from neighbour_of_score import ANSWER\ndef init(): ...\ndef run(data): return ANSWER\n"
    try:
        assert load(text).run("") == 42
    finally:
        sys.modules.pop("neighbour_of_score", None)


def test_classes_of_a_script_can_be_found_by_name(load: Load) -> None:
    """Pickle and dataclasses look their module up under the name that it has on Azure."""
    script = load(
        """
from __future__ import annotations
import pickle
from dataclasses import dataclass
@dataclass
class Answer:
    value: int
def init(): ...
def run(data):
    return pickle.loads(pickle.dumps(Answer(7))).value, Answer.__module__
"""
    )
    assert script.run("") == (7, "entry_module")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("def run(data): ...", "does not have a init() function defined."),
        ("def init(): ...", "does not have a run() function defined."),
        ("init = 1\ndef run(data): ...", "does not have a init() function defined."),
        ("def init(): ...\ndef run(): ...", "run() needs to accept an argument for input data."),
        ("def init(): ...\ndef run(a, b): ...", "run() has a second argument without a default: 'b'"),
        ("def init(): ...\ndef run(a, *, b): ...", "run() has a second argument without a default: 'b'"),
        (
            "def init(): ...\ndef run(a, /): ...",
            "run() cannot accept positional-only arguments, *args, or **kwargs.",
        ),
        ("def init(): ...\ndef run(*a): ...", "run() cannot accept positional-only arguments"),
        ("def init(): ...\ndef run(a, **b): ...", "run() cannot accept positional-only arguments"),
    ],
)
def test_a_script_that_breaks_the_contract_is_refused(load: Load, text: str, complaint: str) -> None:
    """The message says what is missing or too much."""
    assert complaint in refusal(load, text)


def test_a_run_that_cannot_be_called_with_a_body_is_refused(load: Load) -> None:
    """`run` is called with the body as its first positional argument."""
    assert "run()" in refusal(load, "def init(): ...\ndef run(*, data): ...")


@pytest.mark.parametrize("signature", ["data", "data, extra=1", "data, *, extra=1", "data=None"])
def test_arguments_with_defaults_are_fine(load: Load, signature: str) -> None:
    """Only what a call with the body alone leaves open is refused."""
    assert load(f"def init(): ...\ndef run({signature}): return data\n").run("body") == "body"


def test_methods_and_callables_are_fine(load: Load) -> None:
    """`init` and `run` may be anything that can be called."""
    text = """
class Model:
    def load(self): self.ready = True
    def __call__(self, data): return self.ready
model = Model()
init, run = model.load, model
"""
    assert load(text).run("") is True


@pytest.mark.parametrize(
    ("text", "failure", "reason"),
    [
        (
            "import no_such_module",
            "cannot be imported",
            "ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("def init(:", "cannot be imported", "SyntaxError"),
        ("import sys; sys.exit(3)", "cannot be imported", "SystemExit: 3"),
        ("def init(): 1 / 0\ndef run(data): ...", "raised", "ZeroDivisionError"),
        ("import sys\ndef init(): sys.exit('no')\ndef run(data): ...", "raised", "SystemExit: no"),
        ("def init(model): ...\ndef run(data): ...", "raised", "missing 1 required positional argument"),
    ],
)
def test_a_script_that_fails_to_load_shows_the_model_folder(
    load: Load, model_dir: Path, text: str, failure: str, reason: str
) -> None:
    """Most failures of `init` are a path that is not there: the traceback and the folder's files say which."""
    message = refusal(load, text)
    assert failure in message.splitlines()[0]
    assert "Traceback" in message
    assert reason in message
    assert message.endswith(f"The model folder {model_dir} holds:\n  deep/labels.txt\n  model.bin")


def test_an_empty_and_a_missing_model_folder_are_said(load: Load, tmp_path: Path) -> None:
    """A listing of nothing is told apart from no folder at all."""
    (tmp_path / "empty").mkdir()
    assert refusal(load, "1 / 0", folder=tmp_path / "empty").endswith("holds: nothing")
    assert refusal(load, "1 / 0", folder=tmp_path / "none").endswith(f"{tmp_path / 'none'} does not exist.")


def test_a_long_listing_is_cut(load: Load, tmp_path: Path) -> None:
    """A folder of thousands of files does not flood the log."""
    (tmp_path / "many").mkdir()
    for number in range(203):
        (tmp_path / "many" / f"{number:03}").touch()
    message = refusal(load, "1 / 0", folder=tmp_path / "many")
    assert message.endswith("\n  199\n  and 3 more")


@pytest.mark.parametrize("name", ["missing.py", "score.txt", "."])
def test_what_is_no_script_is_refused(load: Load, tmp_path: Path, name: str) -> None:
    """A file that is not there, no Python, or a folder."""
    (tmp_path / "score.txt").write_text("hello")
    assert "is not a Python file" in refusal(load, "", path=tmp_path / name)


def test_a_batched_run_says_what_it_takes(load: Load) -> None:
    """The decorator marks the function and leaves it callable."""
    script = load(
        """
import stoker
def init(): ...
@stoker.batched(shape=(28, 28), dtype="uint8")
def run(data): return data + 1
"""
    )
    assert script.batched == BatchedInput((28, 28), "uint8")
    assert script.run(1) == 2


@pytest.mark.parametrize("shape", [(-1,), (0,), (None, 3), (2.5,), ("3",)])
def test_a_batched_shape_must_be_known(shape: tuple[Any, ...]) -> None:
    """The shape of a row is fixed; the batch axis is not part of it."""
    with pytest.raises(ValueError, match="shape must hold positive integers"):
        stoker.batched(shape=shape)


def test_an_undecorated_run_is_not_batched() -> None:
    """No attribute of a callable is mistaken for the mark."""

    class Anything:
        def __getattr__(self, name: str) -> str:
            return name

    assert batched_input(lambda data: data) is None
    assert batched_input(Anything()) is None
    assert batched_input(stoker.batched(shape=())(lambda data: data)) == BatchedInput((), "float32")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "{}"),
        ("text", '"text"'),
        ('{"a": 1}', '"{\\"a\\": 1}"'),
        ([1, 2.5, True, None], "[1, 2.5, true, null]"),
        ({"a": {"b": []}, 1: 2}, '{"a": {"b": []}, "1": 2}'),
        ((1, 2), "[1, 2]"),
        ("é", '"\\u00e9"'),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        (np.bool_(True), "true"),
        (np.array([[1, 2]]), "[[1, 2]]"),
        ({"classes": np.array([1], np.uint8), "p": [np.float16(0.5)]}, '{"classes": [1], "p": [0.5]}'),
        ([math.nan, math.inf, -math.inf], "[NaN, Infinity, -Infinity]"),
        (np.array([np.nan]), "[NaN]"),
    ],
)
def test_answers_are_written_as_azure_writes_them(result: Any, text: str) -> None:
    """None is an empty object, a string is encoded again, numpy becomes lists, NaN is a token."""
    assert encode_result(result).decode() == text


@pytest.mark.parametrize("result", [b"bytes", {1, 2}, object(), {"a": 1j}, np.array([1j]), {(1, 2): 3}])
def test_what_json_cannot_hold_is_refused(result: Any) -> None:
    """The error says the type, so that the script's author finds it."""
    with pytest.raises(TypeError, match=r"run\(\) returned|keys must be|complex"):
        encode_result(result)


rows_of_json = st.lists(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)  # fmt: skip


@STEADY
@given(rows_of_json)
def test_rows_are_written_one_by_one(rows: list[Any]) -> None:
    """Each row of a batched answer is a JSON text of its own that says what the row was."""
    texts = encode_rows(rows)
    assert len(texts) == len(rows)
    assert [json.loads(text) for text in texts] == rows


def test_rows_may_hold_numpy() -> None:
    """Scalars, arrays in dictionaries, and keys that are no strings."""
    rows = [{"p": np.array([0.5, 1], np.float32), "k": np.int64(3)}, np.float32(2), {1: [np.bool_(True)]}]
    assert [json.loads(text) for text in encode_rows(rows)] == [{"p": [0.5, 1.0], "k": 3}, 2.0, {"1": [True]}]


@pytest.mark.parametrize("row", [math.nan, [1.5, math.inf], {"p": -math.inf}, {"p": np.array([np.nan])}])
def test_rows_write_what_is_not_finite_as_answers_do(row: Any) -> None:
    """A batched script that returns a list gives the tokens that one with an array or without batching gives."""
    (text,) = encode_rows([row])
    assert json.loads(text, parse_constant=str) == json.loads(encode_result(row), parse_constant=str)


def test_a_row_that_json_cannot_hold_is_refused() -> None:
    """The batch fails with the type's name."""
    with pytest.raises(TypeError, match=r"run\(\) returned set"):
        encode_rows([1, {2}])
