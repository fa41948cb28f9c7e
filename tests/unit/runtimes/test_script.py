"""Entry scripts as runtimes: whole bodies one by one, or batches; and the life of a deployment until it is ready."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from stoker.deployment import Deployment, Device
from stoker.device.loading import load
from stoker.device.runtime_loading import load_runtime
from stoker.errors import LoadFailed
from stoker.runtimes import script as script_runtime
from stoker.runtimes.base import ForkingRuntime, Runtime
from stoker.runtimes.batched_script import BatchedScript
from stoker.runtimes.script import BodyScript, load_script
from stoker.scripts import coroutines
from stoker.scripts.call_watchdog import Watchdog
from stoker.tensors import TensorSpec
from stoker.wire.script_requests import HEAD_ROOM_BYTES, ScriptAnswer, ScriptRequest

pytestmark = pytest.mark.usefixtures("without_flask")

CPU = Device("cpu", 0, "a processor")
Write = Callable[..., Deployment]


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a script and return it as a deployment; what loading does to the process is undone afterwards."""
    environ = {name: value for name, value in os.environ.items() if name != "AML_APP_ROOT"}
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # A thread that lives as long as the process would watch for all tests that follow.
    monkeypatch.setattr(Watchdog, "start", lambda self: None)

    def write(text: str, max_batch_rows: int = 8) -> Deployment:
        script = tmp_path / "score.py"
        script.write_text(text)
        return Deployment("digits", 1, "script", script, tmp_path, max_batch_rows, 1000)

    yield write
    sys.modules.pop("entry_module", None)


def body_script(deployment: Write, run: str) -> Runtime:
    """Load an undecorated script with this `run`."""
    return load_script(
        deployment(f"import sys, json\ndef init(): ...\ndef run(raw_data):\n    {run}\n"), CPU, 1
    )


def answers(runtime: Runtime, *bodies: bytes) -> list[ScriptAnswer]:
    """Return the answers of a script to requests with these bodies."""
    packed = [ScriptRequest(b"id", body).pack() for body in bodies]
    return [ScriptAnswer.unpack(text) for text in runtime.run([packed])[0]]


def batched_script(deployment: Write, run: str, shape: str = "(2,)", dtype: str = "float32") -> Runtime:
    """Load a batched script with this `run`."""
    text = f"""
import sys
import numpy as np
import stoker
def init(): ...
@stoker.batched(shape={shape}, dtype={dtype!r})
def run(data):
    {run}
"""
    return load_script(deployment(text), CPU, 1)


def test_script_finds_its_device_and_threads(deployment: Write) -> None:
    """Variables have the one GPU that its process sees, and the number of threads."""
    text = """
import os
def init():
    global seen
    seen = [os.environ["STOKER_DEVICE"], os.environ["STOKER_INTRA_OP_THREADS"]]
def run(raw_data):
    return seen
"""
    runtime = load_script(deployment(text), Device("cuda", 1, "a GPU"), 3)
    assert [answer.body for answer in answers(runtime, b"")] == [b'["cuda:0", "3"]']
    assert os.environ["STOKER_DEVICE"] == "cuda:0"


def test_an_undecorated_script_takes_whole_bodies(deployment: Write) -> None:
    """Its signature is one request in, one answer out, both up to the largest body and its head."""
    runtime = body_script(deployment, "return json.loads(raw_data)")
    assert isinstance(runtime, BodyScript)
    assert runtime.signature.takes == "body"
    assert runtime.signature.script is not None
    assert (runtime.signature.script.kind, runtime.signature.script.wants_head) == ("string", False)
    size = 1000 + HEAD_ROOM_BYTES
    assert runtime.signature.inputs == (TensorSpec("request", "uint8", (size,), variable=True),)
    assert runtime.signature.outputs == (TensorSpec("answer", "uint8", (size,), variable=True),)
    bodies = ['{"data": [1]}', '"é"', "[1.50]"]
    found = answers(runtime, *(body.encode() for body in bodies))
    assert [answer.body for answer in found] == [b'{"data": [1]}', b'"\\u00e9"', b"[1.5]"]


def test_failed_body_does_not_affect_others(deployment: Write) -> None:
    """An exception belongs to its own request."""
    runtime = body_script(deployment, "if raw_data != '\"bad\"': return 1\n    raise ValueError")
    first, bad, last = answers(runtime, b"a", b'"bad"', b"b")
    assert (first.status, bad.status, last.status) == (200, 500, 200)
    assert (first.body, last.body) == (b"1", b"1")


def test_a_script_finds_its_environment(deployment: Write) -> None:
    """The variables of the contract are there when the script is executed."""
    text = """
import os
SEEN = [os.environ["AZUREML_MODEL_DIR"], os.environ["AZUREML_ENTRY_SCRIPT"], os.environ["SCORING_TIMEOUT_MS"]]
def init(): ...
def run(raw_data): return SEEN
"""
    model = deployment(text)
    (answer,) = answers(load_script(model, CPU, 1), b"")
    assert json.loads(answer.body) == [str(model.model_dir), str(model.path), "60000"]


def test_a_run_without_an_argument_is_refused_before_init(deployment: Write) -> None:
    """`init` may take minutes, so faults of `run` are reported first."""
    text = "def init(): raise AssertionError('too late')\ndef run(): ...\n"
    with pytest.raises(LoadFailed, match="needs to accept an argument for input data"):
        load_script(deployment(text), CPU, 1)


@pytest.mark.parametrize(
    ("result", "spec"),
    [
        ("data * 2", TensorSpec("result", "float32", (2,))),
        ("data.sum(axis=1, dtype=np.float64)", TensorSpec("result", "float64", ())),
        ("data.argmax(axis=1)", TensorSpec("result", "int64", ())),
        ("data > 0", TensorSpec("result", "bool", (2,))),
        ("np.zeros((len(data), 3, 1), np.float16)", TensorSpec("result", "float16", (3, 1))),
    ],
)
def test_a_batched_script_that_returns_an_array_has_rows(
    deployment: Write, result: str, spec: TensorSpec
) -> None:
    """Dtype and row shape of the answer are learned at load."""
    runtime = batched_script(deployment, f"return {result}")
    assert isinstance(runtime, BatchedScript)
    assert runtime.signature.takes == "rows"
    assert runtime.signature.inputs == (TensorSpec("data", "float32", (2,)),)
    assert runtime.signature.outputs == (spec,)
    data = np.array([[1, -2], [3, 4], [0, 0]], np.float32)
    (output,) = runtime.run([data])
    expected = eval(result, {"np": np, "data": data})
    assert output.dtype == spec.dtype
    assert output.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("result", "rows"),
    [
        ("data.sum(axis=1).tolist()", [3.0, 7.0]),
        ("[int(n) for n in data[:, 0]]", [1, 3]),
        ("[{'k': n, 'row': row} for n, row in enumerate(data)]", [{"k": 0, "row": [1, 2]}, {"k": 1, "row": [3, 4]}]),
        ("[str(n) for n in range(len(data))]", ["0", "1"]),
        ("np.array(['a', 'b', 'c'])[:len(data)]", ["a", "b"]),
        ("np.array([{}, None, 1], object)[:len(data)]", [{}, None]),
        ("[list(range(n)) for n in range(len(data))]", [[], [0]]),
        ("tuple(row for row in data)", [[1, 2], [3, 4]]),
    ],
)  # fmt: skip
def test_batched_script_without_an_array_has_json_rows(
    deployment: Write, result: str, rows: list[Any]
) -> None:
    """Lists of numbers, of dictionaries, of texts: each row is written as JSON."""
    runtime = batched_script(deployment, f"return {result}")
    assert runtime.signature.outputs[0].variable
    (texts,) = runtime.run([np.array([[1, 2], [3, 4]], np.float32)])
    assert [json.loads(text) for text in texts] == rows


@pytest.mark.parametrize(
    ("shape", "dtype", "batch"),
    [("()", "int64", (2,)), ("(3, 2)", "uint8", (2, 3, 2)), ("(1,)", "bool", (2, 1))],
)
def test_batched_script_gets_its_shape_and_dtype(
    deployment: Write, shape: str, dtype: str, batch: tuple[int, ...]
) -> None:
    """Rows are scalars, images and flags."""
    runtime = batched_script(
        deployment, "return [[list(data.shape), data.dtype.name]] * len(data)", shape, dtype
    )
    (spec,) = runtime.signature.inputs
    (texts,) = runtime.run([np.zeros((2, *spec.shape), spec.dtype)])
    assert json.loads(texts[0]) == [list(batch), dtype]


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (
            "raise ValueError('no weights')",
            "run() fails on a batch of 2 rows of zeros: ValueError('no weights')",
        ),
        ("sys.exit(1)", "run() fails on a batch of 2 rows of zeros: SystemExit(1)"),
        ("raise KeyboardInterrupt", "run() fails on a batch of 2 rows of zeros: KeyboardInterrupt()"),
        ("return None", "run() returned NoneType for a batch of 2: it has to return an entry for each row"),
        (
            "return data.sum()",
            "run() returned float32 for a batch of 2: it has to return an entry for each row",
        ),
        (
            "return np.array(5)",
            "run() returned ndarray for a batch of 2: it has to return an entry for each row",
        ),
        ("1 / 0", "    1 / 0\n    ~~^~~\nZeroDivisionError: division by zero"),
        ("return data[:1]", "run() returned 1 rows for a batch of 2"),
        ("return []", "run() returned 0 rows for a batch of 2"),
        ("return {'a': 1}", "run() returned 1 rows for a batch of 2"),
    ],
)
def test_a_batched_script_that_cannot_score_zeros_is_refused(
    deployment: Write, run: str, complaint: str
) -> None:
    """The load finds a fault of all requests."""
    with pytest.raises(LoadFailed) as refused:
        batched_script(deployment, run)
    assert complaint in str(refused.value)


def test_a_batched_dtype_that_is_no_number_is_refused(deployment: Write) -> None:
    """The message names the decorator and the dtype."""
    with pytest.raises(LoadFailed, match=r"stoker\.batched: .*dtype 'object'"):
        batched_script(deployment, "return data", dtype="object")


@pytest.mark.parametrize(
    ("run", "error", "complaint"),
    [
        ("return data[:4]", ValueError, "run() returned 4 rows for a batch of 5"),
        ("if len(data) == 5: sys.exit(4)\n    return data", RuntimeError, "run() called sys.exit(4)"),
        (
            "if len(data) == 5: raise KeyboardInterrupt\n    return data",
            RuntimeError,
            "run() raised KeyboardInterrupt",
        ),
        ("if len(data) == 5: raise KeyError('k')\n    return data", KeyError, "k"),
    ],
)
def test_a_batch_that_fails_later_raises(
    deployment: Write, run: str, error: type[Exception], complaint: str
) -> None:
    """The worker splits such a batch; an exit of the script must not be one of the server."""
    runtime = batched_script(deployment, run)
    with pytest.raises(error) as raised:
        runtime.run([np.zeros((5, 2), np.float32)])
    assert complaint in str(raised.value)


def test_loading_runs_the_largest_and_the_smallest_batch(deployment: Write) -> None:
    """No first request pays for work per batch size; another largest batch measures its time."""
    text = """
import stoker
sizes = []
def init(): ...
@stoker.batched(shape=(1,))
def run(data):
    sizes.append(len(data))
    return data
"""
    loaded = load(deployment(text, max_batch_rows=5), CPU)
    sizes = sys.modules["entry_module"].sizes
    assert (sizes[0], sizes[-3:]) == (2, [5, 1, 5])
    assert loaded.signature is loaded.runtime.signature
    assert loaded.load_s >= 0
    assert loaded.warm_up_s >= 0


def test_a_script_that_fails_on_its_largest_batch_is_not_ready(deployment: Write) -> None:
    """The message has the number of rows."""
    text = """
import stoker
def init(): ...
@stoker.batched(shape=(1,))
def run(data):
    return data if len(data) < 5 else data[:, :0]
"""
    with pytest.raises(
        LoadFailed, match="digits fails on a batch of 5 rows of zeros: output 'result' has shape"
    ):
        load(deployment(text, max_batch_rows=5), CPU)


def test_two_outputs_are_not_taken_for_two_rows(deployment: Write) -> None:
    """A tuple of two arrays looks like two rows to a batch of two, and not to others."""
    text = """
import stoker
def init(): ...
@stoker.batched(shape=(1,))
def run(data):
    return data, data
"""
    with pytest.raises(LoadFailed, match=r"run\(\) returned 2 rows for a batch of 1"):
        load(deployment(text), CPU)


def test_an_undecorated_script_is_ready_without_a_request(deployment: Write) -> None:
    """A body cannot be made up."""
    loaded = load(deployment("def init(): ...\ndef run(raw_data): raise ValueError(raw_data)\n"), CPU)
    assert loaded.signature.takes == "body"


def test_a_framework_without_a_runtime_is_refused(deployment: Write) -> None:
    """A checkpoint needs a script that knows how to load it."""
    model = Deployment("old", 1, "tf1-checkpoint", Path("model.ckpt"), Path(), 8, 1000)
    with pytest.raises(LoadFailed, match=r"'tf1-checkpoint' cannot be served by itself.*score\.py"):
        load_runtime(model, CPU)


V1_SCRIPT = "import tensorflow as tf\ndef init(): tf.Session\ndef run(raw_data): return tf.Session\n"


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Install a stand-in for TensorFlow 2."""
    made = ModuleType("tensorflow")
    v1 = ModuleType("v1")
    vars(v1).update(Session="session", disable_v2_behavior=lambda: None)
    compat = ModuleType("compat")
    vars(compat).update(v1=v1)
    vars(made).update(compat=compat, __version__="2.99", __spec__=ModuleSpec("tensorflow", None), __path__=[])
    monkeypatch.setitem(sys.modules, "tensorflow", made)
    monkeypatch.setattr(script_runtime, "import_tensorflow", lambda device, threads: made)
    return made


@pytest.mark.parametrize("wish", ["auto", "v1"])
def test_a_script_of_tensorflow_1_gets_its_api(deployment: Write, tensorflow: ModuleType, wish: str) -> None:
    """Its text or the setting shows that it needs it."""
    model = dataclasses.replace(deployment(V1_SCRIPT), tensorflow_compat=wish)
    (answer,) = answers(load_script(model, CPU, 1), b"")
    assert answer.body == b'"session"'


def test_setting_off_leaves_tensorflow_unchanged(deployment: Write, tensorflow: ModuleType) -> None:
    """The script then fails as without a server."""
    model = dataclasses.replace(deployment(V1_SCRIPT), tensorflow_compat="off")
    with pytest.raises(LoadFailed, match="module 'tensorflow' has no attribute 'Session'"):
        load_script(model, CPU, 1)


def test_script_of_tensorflow_2_keeps_its_module(deployment: Write, tensorflow: ModuleType) -> None:
    """The module is not replaced."""
    load_script(deployment("import tensorflow as tf\ndef init(): ...\ndef run(raw_data): ...\n"), CPU, 1)
    assert sys.modules["tensorflow"] is tensorflow


def test_tensorflow_that_cannot_use_the_device_is_logged(
    deployment: Write,
    tensorflow: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The script runs where TensorFlow runs: it may use the GPU by other means."""

    def refuse(device: Device, threads: int) -> None:
        raise LoadFailed("TensorFlow finds 0 GPUs")

    monkeypatch.setattr(script_runtime, "import_tensorflow", refuse)
    (answer,) = answers(load_script(deployment(V1_SCRIPT), Device("cuda", 0, "a GPU"), 1), b"")
    assert answer.status == 200
    assert "the script's TensorFlow is not confined to cuda:0: TensorFlow finds 0 GPUs" in caplog.text


def test_a_script_that_can_do_without_tensorflow_may(
    deployment: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is not installed, its import is the script's matter."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    text = "try: import tensorflow\nexcept ImportError: pass\ndef init(): ...\ndef run(raw_data): ...\n"
    (answer,) = answers(load_script(deployment(text), CPU, 1), b"")
    assert answer.body == b"{}"


@pytest.mark.parametrize(("batching", "how"), [("auto", "tested"), ("none", "said"), ("merge", "said")])
def test_the_isolation_of_a_script_is_that_of_its_self_check(
    deployment: Write, batching: Any, how: str
) -> None:
    """Or what was asked for; the reason is the one that the summary gives."""
    script = deployment("def init(): ...\ndef run(raw_data):\n    return [1]\n")
    signature = load_script(dataclasses.replace(script, batching=batching), CPU, 1).signature
    assert signature.isolation is not None
    assert signature.script is not None
    assert signature.isolation.how == how
    assert signature.isolation.batched == (batching == "merge")
    assert signature.isolation.reason == signature.script.batching_reason


def test_decorated_script_of_mixed_rows_is_logged(
    deployment: Write, caplog: pytest.LogCaptureFixture
) -> None:
    """Its author declares batches, so it gets them; a script that keeps rows apart has no warning."""
    with np.errstate(all="ignore"):
        isolation = batched_script(deployment, "return data - data[:, :1]").signature.isolation
        assert isolation is not None
        assert (isolation.how, isolation.batched, isolation.companions > 0) == ("declared", True, True)
        assert not caplog.records
        mixed = batched_script(deployment, "return data - data.mean(axis=0)").signature.isolation
    assert mixed is not None
    assert (mixed.how, mixed.batched) == ("declared", True)
    assert "is decorated with stoker.batched, so its requests are batched, though beside a row" in caplog.text


def test_instances_of_a_script_that_yields_share_one_loop(
    deployment: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That on which `init` has been, for streams on any thread; by default there is no instance but one."""
    text = """
import asyncio
async def init():
    global loop
    loop = asyncio.get_running_loop()
async def run(raw_data):
    yield asyncio.get_running_loop() is loop
"""
    monkeypatch.setattr(coroutines, "SHARED_LOOPS", [])
    assert not isinstance(load_script(deployment(text), CPU, 1), ForkingRuntime)
    assert not coroutines.SHARED_LOOPS
    coroutines.OF_THREAD.loop.close()
    del coroutines.OF_THREAD.loop
    runtime = load_script(dataclasses.replace(deployment(text), instances=2), CPU, 1)
    assert isinstance(runtime, ForkingRuntime)
    with ThreadPoolExecutor(2) as threads:
        given = list(threads.map(lambda one: answers(one, b"")[0].body, [runtime, runtime.fork()]))
    assert given == [b"[true]"] * 2
    coroutines.SHARED_LOOPS[0].close()


def test_a_script_that_returns_has_one_instance(deployment: Write) -> None:
    """The log has the settings that help."""
    text = "def init(): ...\ndef run(raw_data):\n    return 1\n"
    with pytest.raises(
        LoadFailed, match="unless it yields or is given state; leave instances out, or set replicas"
    ):
        load(dataclasses.replace(deployment(text), instances=2), CPU)
    coroutines.SHARED_LOOPS.pop().close()


def test_a_shape_that_no_memory_holds_is_refused(deployment: Write) -> None:
    """The message has its size; no rows of zeros are made."""
    script = deployment(
        "import stoker\ndef init(): ...\n@stoker.batched(shape=(1 << 45,))\ndef run(data): return data\n"
    )
    with pytest.raises(LoadFailed, match=r"digits: 3 rows of stoker.batched\(shape=.* would take"):
        load_runtime(script, CPU)
