"""Scripts whose `run` is decorated with `stoker.batched`."""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.deployment import Deployment, Device
from stoker.device.loading import load
from stoker.device.runtime_loading import load_runtime
from stoker.errors import LoadFailed
from stoker.runtimes.base import Runtime
from stoker.runtimes.batched_script import BatchedScript
from stoker.runtimes.script import load_script
from stoker.tensors import TensorSpec

pytestmark = pytest.mark.usefixtures("without_flask")

CPU = Device("cpu", 0, "a processor")
Write = Callable[..., Deployment]


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


def test_a_shape_that_no_memory_holds_is_refused(deployment: Write) -> None:
    """The message has its size; no rows of zeros are made."""
    script = deployment(
        "import stoker\ndef init(): ...\n@stoker.batched(shape=(1 << 45,))\ndef run(data): return data\n"
    )
    with pytest.raises(LoadFailed, match=r"digits: 3 rows of stoker.batched\(shape=.* would take"):
        load_runtime(script, CPU)
