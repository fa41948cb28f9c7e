"""The entry-script contract: scripts are executed, and refused with a reason if they break it."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.batch_mark import BatchedInput, batched_input
from stoker.errors import LoadFailed
from stoker.scripts.coroutines import finish
from stoker.scripts.entry_script import EntryScript
from stoker_azure import aml_request

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
    """Execute and initialise a script with this text; undo its changes of the process afterwards."""
    monkeypatch.setattr(aml_request, "_rawHttpRequested", False)
    script = tmp_path / "scripts" / "score.py"
    script.parent.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(script.parent)])

    def load(text: str, folder: Path = model_dir, path: Path = script) -> EntryScript:
        script.write_text(text)
        loaded = EntryScript(path, folder)
        loaded.initialise(finish)
        return loaded

    yield load
    sys.modules.pop("entry_module", None)


def refusal(load: Load, text: str, **options: Path) -> str:
    """The message with which a script is refused."""
    with pytest.raises(LoadFailed) as refused:
        load(text, **options)
    return str(refused.value)


def test_a_script_is_executed_and_initialised_once(load: Load) -> None:
    """`init` runs at load, and `run` sees what it has set up."""
    script = load(
        """
calls = []
def init():
    calls.append(__name__ + ":" + __file__.rpartition("/")[2])
def run(raw_data):
    return [calls, raw_data]
"""
    )
    assert script.run("body") == [["entry_module:score.py"], "body"]
    assert script.batched is None
    assert not script.raw


def test_a_script_that_changes_within_a_second_is_executed_anew(load: Load, tmp_path: Path) -> None:
    """Its size and its time are those of the compiled script; no compiled code is left beside it."""
    text = "def init(): ...\ndef run(data): return {}\n"
    script = tmp_path / "scripts" / "score.py"
    assert load(text.format(1)).run("") == 1
    times = script.stat()
    script.write_text(text.format(2))
    os.utime(script, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert EntryScript(script, tmp_path).run("") == 2
    assert not (script.parent / "__pycache__").exists()


def test_an_init_that_is_a_coroutine_is_finished(load: Load) -> None:
    """`async def init` does its work before the script counts as loaded."""
    text = """
import asyncio
async def init():
    global ready
    await asyncio.sleep(0)
    ready = True
def run(data): return ready
"""
    assert load(text).run("") is True


def test_a_driver_module_has_the_run(load: Load, tmp_path: Path) -> None:
    """With `driver_module`, as Azure ML's own tools write it, `init` is of the script and `run` of that module."""
    (tmp_path / "scripts" / "driver_of_score.py").write_text(
        "def init(): raise ValueError\ndef run(data): return 'inner ' + data\n"
    )
    text = "import driver_of_score as driver_module\ndef init(): ...\ndef run(data): return 'outer'\n"
    try:
        assert load(text).run("x") == "inner x"
    finally:
        sys.modules.pop("driver_of_score", None)


def test_a_driver_module_without_run_is_refused(load: Load) -> None:
    """The script's own `run` does not replace it."""
    text = "import json as driver_module\ndef init(): ...\ndef run(data): ...\n"
    assert "does not have a run() function defined." in refusal(load, text)


@pytest.mark.parametrize(
    "module", ["azureml.contrib.services.aml_request", "azureml_inference_server_http.api.aml_request"]
)
def test_rawhttp_in_a_helper_switches_the_script(load: Load, tmp_path: Path, module: str) -> None:
    """The flag belongs to the process: any decorated function in any module sets it."""
    helper = tmp_path / "scripts" / "helper_with_rawhttp.py"
    helper.write_text(f"from {module} import rawhttp\n@rawhttp\ndef anything(): ...\n")
    try:
        assert load("import helper_with_rawhttp\ndef init(): ...\ndef run(data): ...\n").raw
    finally:
        sys.modules.pop("helper_with_rawhttp", None)


def test_a_script_may_import_its_neighbours(load: Load, tmp_path: Path) -> None:
    """Modules beside the script are found, as on Azure."""
    (tmp_path / "scripts" / "neighbour_of_score.py").write_text("ANSWER = 42\n")
    text = "from neighbour_of_score import ANSWER\ndef init(): ...\ndef run(data): return ANSWER\n"
    try:
        assert load(text).run("") == 42
    finally:
        sys.modules.pop("neighbour_of_score", None)


def test_classes_of_a_script_can_be_found_by_name(load: Load) -> None:
    """Pickle and dataclasses find the module of a class by the name that it has on Azure."""
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
    ],
)
def test_a_script_that_breaks_the_contract_is_refused(load: Load, text: str, complaint: str) -> None:
    """The message names the missing function."""
    assert complaint in refusal(load, text)


def test_methods_and_callables_are_fine(load: Load) -> None:
    """`init` and `run` may be any callable objects."""
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
        (
            "import asyncio\ndef init(): raise asyncio.CancelledError\ndef run(data): ...",
            "raised",
            "CancelledError",
        ),
        ("raise KeyboardInterrupt", "cannot be imported", "KeyboardInterrupt"),
        ("def init(model): ...\ndef run(data): ...", "raised", "missing 1 required positional argument"),
    ],
)
def test_a_script_that_fails_to_load_shows_the_model_folder(
    load: Load, model_dir: Path, text: str, failure: str, reason: str
) -> None:
    """Most failures of `init` are a wrong path: the traceback and the folder's files show it."""
    message = refusal(load, text)
    assert failure in message.splitlines()[0]
    assert reason in message
    assert message.endswith(f"The model folder {model_dir} holds:\n  deep/labels.txt\n  model.bin")


def test_a_traceback_begins_in_the_script(load: Load, tmp_path: Path) -> None:
    """Frames of the server are of no use to the author; a syntax error has no frame."""
    begins = (
        f'Traceback (most recent call last):\n  File "{tmp_path / "scripts" / "score.py"}", line 2, in init\n'
    )
    assert begins in refusal(load, "def init():\n    1 / 0\ndef run(data): ...")
    lines = refusal(load, "def init(): ...\ndef run(data)\n    return data").splitlines()
    assert lines[1].endswith('score.py", line 2')
    assert lines[2:5] == ["    def run(data)", "                 ^", "SyntaxError: expected ':'"]


def test_an_empty_and_a_missing_model_folder_have_different_messages(load: Load, tmp_path: Path) -> None:
    """The message says that the folder is empty, or that it does not exist."""
    (tmp_path / "empty").mkdir()
    assert refusal(load, "1 / 0", folder=tmp_path / "empty").endswith("holds: nothing")
    assert refusal(load, "1 / 0", folder=tmp_path / "none").endswith(f"{tmp_path / 'none'} does not exist.")


def test_a_long_listing_is_cut(load: Load, tmp_path: Path) -> None:
    """A folder of thousands of files does not flood the log."""
    (tmp_path / "many").mkdir()
    for number in range(203):
        (tmp_path / "many" / f"{number:03}").touch()
    message = refusal(load, "1 / 0", folder=tmp_path / "many")
    assert message.endswith("\n  199\n  and more")


def test_a_listing_has_no_hidden_files(load: Load, tmp_path: Path) -> None:
    """Without a setting the model's folder is the script's, which may contain workspaces, keys and caches."""
    for name in (".stoker/keys/a.keys", "__pycache__/score.pyc", "model/.DS_Store", "model/digits.onnx"):
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).touch()
    message = refusal(load, "1 / 0", folder=tmp_path / "folder")
    assert message.endswith("holds:\n  model/digits.onnx")


@pytest.mark.parametrize("name", ["missing.py", "score.txt", "."])
def test_file_that_is_no_script_is_refused(load: Load, tmp_path: Path, name: str) -> None:
    """A missing file, another file and a folder are refused."""
    (tmp_path / "score.txt").write_text("hello")
    assert "is not a Python file" in refusal(load, "", path=tmp_path / name)


def test_a_batched_run_declares_its_input(load: Load) -> None:
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

    class AnyAttribute:
        def __getattr__(self, name: str) -> str:
            return name

    assert batched_input(lambda data: data) is None
    assert batched_input(AnyAttribute()) is None
    assert batched_input(stoker.batched(shape=())(lambda data: data)) == BatchedInput((), "float32")
