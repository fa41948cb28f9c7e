"""Entry scripts as runtimes: whole bodies one by one, or batches; and the life of a deployment until it is ready."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stoker.deployment import Deployment, Device
from stoker.device.loading import load
from stoker.device.runtime_loading import load_runtime
from stoker.errors import LoadFailed
from stoker.runtimes import script as script_runtime
from stoker.runtimes.base import ForkingRuntime, Runtime
from stoker.runtimes.script import BodyScript, load_script
from stoker.scripts import coroutines
from stoker.tensors import TensorSpec
from stoker.wire.script_requests import HEAD_ROOM_BYTES, ScriptAnswer, ScriptRequest

pytestmark = pytest.mark.usefixtures("without_flask")

CPU = Device("cpu", 0, "a processor")
Write = Callable[..., Deployment]


def body_script(deployment: Write, run: str) -> Runtime:
    """Load an undecorated script with this `run`."""
    return load_script(
        deployment(f"import sys, json\ndef init(): ...\ndef run(raw_data):\n    {run}\n"), CPU, 1
    )


def answers(runtime: Runtime, *bodies: bytes) -> list[ScriptAnswer]:
    """Return the answers of a script to requests with these bodies."""
    packed = [ScriptRequest(b"id", body).pack() for body in bodies]
    return [ScriptAnswer.unpack(text) for text in runtime.run([packed])[0]]


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
