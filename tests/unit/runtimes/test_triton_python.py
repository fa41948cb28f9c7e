"""Models of Triton's Python backend: loads, batches, and failures of single requests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import pytest

from stoker.deployment import Deployment, Device
from stoker.errors import InvalidInput, LoadFailed, ScoringTimeout
from stoker.runtimes.base import ErrorForCaller, RowFailure
from stoker.runtimes.triton_python import TritonPythonRuntime, load_triton_model
from stoker.scripts.call_watchdog import Watchdog
from stoker.wire.packed import FACTS, pack, unpack

CPU = Device("cpu", 0, "cpu")
TENSORS = {
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
}
TOGETHER = {**TENSORS, "max_batch_size": 8, "dynamic_batching": {}}
Load = Callable[..., TritonPythonRuntime]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a model; the text is the body of `execute` for each `request`, or of its class."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("entry_module", "triton_python_backend_utils"):
        monkeypatch.setitem(sys.modules, name, None)

    def loaded(
        body: str, config: dict[str, Any] = TOGETHER, *, methods: str = "", **settings: Any
    ) -> TritonPythonRuntime:
        folder = tmp_path / "net" / "1"
        folder.mkdir(parents=True, exist_ok=True)
        execute = (
            "def execute(self, requests):\n    responses = []\n    for request in requests:\n"
            f"        x = pb_utils.get_input_tensor_by_name(request, 'x').as_numpy()\n{indent(body, 8 * ' ')}\n"
            "    return responses\n"
        )
        (folder / "model.py").write_text(
            "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n"
            f"class TritonPythonModel:\n{indent(methods + execute, 4 * ' ')}"
        )
        deployment = Deployment(
            "net",
            1,
            "script",
            folder / "model.py",
            folder,
            8,
            1000,
            model_config=json.dumps(config),
            **settings,
        )
        return load_triton_model(deployment, CPU, Watchdog(deployment.timeout_ms))

    return loaded


ANSWER = "responses.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', {})]))"
COUNT = ANSWER.format("np.full_like(x, len(requests))")


def request(value: float, rows: int = 1, **facts: Any) -> bytes:
    """Return a packed request."""
    array = np.full((rows, 2), value, np.float32)
    if not facts:
        return pack({"x": array})
    packed_facts = np.empty(1, object)
    packed_facts[0] = json.dumps(facts).encode()
    return pack({"x": array, FACTS: packed_facts})


def answers(runtime: TritonPythonRuntime, *requests: bytes) -> list[Any]:
    """Return the first number of each answer, or its error."""
    (given,) = runtime.run([requests])
    return [one.error if isinstance(one, RowFailure) else float(unpack(one)["y"][0, 0]) for one in given]


def test_requests_share_a_call_as_the_configuration_says(load: Load) -> None:
    """A call has at most `max_batch_rows` rows of one shape and chain of callers; without dynamic_batching, one."""
    both = [request(0, 5), request(0, 3), request(0, 1)]
    assert answers(load(COUNT), *both) == [2, 2, 1]
    assert answers(load(COUNT), request(0), request(0, parameters={"stoker_callers": "a:1"})) == [1, 1]
    assert answers(load(COUNT, batching="none"), *both) == [1, 1, 1]
    alone = load(COUNT, {**TENSORS, "max_batch_size": 8})
    assert answers(alone, *both) == [1, 1, 1]
    assert alone.signature.tensors is not None
    assert alone.signature.tensors.batched
    assert str(alone.signature.tensors.inputs[0]) == "x float32[?,2]"


def test_failed_request_does_not_affect_others(load: Load) -> None:
    """A response may be an error, `execute` may raise, or an answer may be wrong."""
    body = (
        "value = x[0, 0]\n"
        "if value == 1:\n    raise KeyError('hidden')\n"
        "if value == 2:\n    raise pb_utils.TritonModelException('for the caller')\n"
        "if value in (3, 4):\n"
        "    code = pb_utils.TritonError.INVALID_ARG if value == 3 else pb_utils.TritonError.NOT_FOUND\n"
        "    responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError('why', code)))\n"
        "elif value == 5:\n    responses.append(None)\n"
        "else:\n"
        "    name = 'z' if value == 6 else 'y'\n"
        "    dtype = np.float64 if value == 7 else np.float32\n"
        "    y = x[:, :1] if value == 8 else np.vstack([x, x]) if value == 9 else x\n"
        "    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, y.astype(dtype))]))"
    )
    given = answers(load(body), *map(request, range(11)))
    assert (given[0], given[10]) == (0, 10)
    kinds = [KeyError, ErrorForCaller, InvalidInput, ErrorForCaller, TypeError, *[ValueError] * 4]
    assert [type(error) for error in given[1:10]] == kinds
    assert [str(error) for error in given[2:5]] == ["for the caller", "why", "why"]
    assert "gave no output 'y', but z" in str(given[6])
    assert "y float64[1,2] to a request of 1 rows, and its configuration declares y float32[?,2]" in str(
        given[7]
    )


def test_wrong_number_of_responses_and_interrupted_calls_fail(load: Load) -> None:
    """A list of another length fails like an exception; an interrupted call is not repeated."""
    (failed,) = answers(load("pass"), request(0))
    assert "execute() returned 0 responses for 1 requests" in str(failed)
    late = load("raise AssertionError", timeout_ms=50)

    def interrupted(_: Any) -> Any:
        raise ScoringTimeout(50)

    late._watchdog.guard = interrupted  # type: ignore[method-assign]
    assert [type(error) for error in answers(late, request(0), request(1))] == [ScoringTimeout] * 2


def test_python_model_gets_its_configuration_and_request_facts(load: Load) -> None:
    """A model gets its configuration, then each request's id and outputs, and arrays of its own."""
    methods = "def initialize(self, args):\n    self.args = args\n\n"
    body = (
        "import json\nx += 1\nconfig = json.loads(self.args['model_config'])\n"
        "assert self.args['model_name'] == config['name'] == 'net' and self.args['model_version'] == '1'\n"
        "assert self.args['model_repository'].endswith('/net') and self.args['model_instance_kind'] == 'CPU'\n"
        "assert pb_utils.get_input_config_by_name(config, 'x')['dims'] == [2]\n"
        "assert request.request_id() == 'me' and request.requested_output_names() == ['y']\n"
        "assert json.loads(request.parameters()) == {'n': 1}\n" + ANSWER.format("x")
    )
    runtime = load(body, methods=methods)
    assert answers(runtime, request(5, id="me", outputs=["y"], parameters={"n": 1})) == [6]


def test_class_completes_the_configuration(load: Load) -> None:
    """`auto_complete_config` cannot contradict the written configuration."""
    methods = (
        "@staticmethod\ndef auto_complete_config(config):\n"
        "    config.add_input({'name': 'x', 'data_type': 'TYPE_FP32', 'dims': [2], 'optional': True})\n"
        "    config.add_output({'name': 'y', 'data_type': 'TYPE_FP32', 'dims': [2]})\n"
        "    config.set_max_batch_size(4)\n    config.set_dynamic_batching()\n    return config\n\n"
    )
    runtime = load(COUNT, {}, methods=methods)
    assert answers(runtime, request(0), request(0)) == [2, 2]
    assert runtime.tensors.inputs[0].optional
    other = {**TENSORS, "output": [{"name": "y", "data_type": "TYPE_INT8", "dims": [2]}]}
    with pytest.raises(LoadFailed, match=r"'y' has the data_type TYPE_INT8 in config.pbtxt, and TYPE_FP32"):
        load(COUNT, other, methods=methods)


COMPLETE = "@staticmethod\ndef auto_complete_config(config):\n    {}\n    return config\n\n"


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (
            "config.set_max_batch_size(4)",
            "max_batch_size is 8 in config.pbtxt, and 4 in auto_complete_config",
        ),
        ("config.add_input({'name': 'x'})", "adds an input without data_type"),
        (
            "config.add_input({'name': 'x', 'data_type': 'TYPE_FP32', 'dims': [3]})",
            r"'x' has the dims \[2\] in config.pbtxt, and \[3\]",
        ),
        (
            "config.add_output({'name': 'z', 'data_type': 'TYPE_FP32', 'dims': [2], 'label_filename': 'l'})",
            "gives the output 'z' the property 'label_filename'",
        ),
        (
            "config.as_dict()['instance_group'] = [{'count': 2}]",
            "sets instance_group, which has no effect there",
        ),
        ("config.as_dict()['max_batch_size'] = '8'", "sets max_batch_size to no number of rows"),
        ("config.set_model_transaction_policy({'decoupled': True})", "decoupled"),
        ("config.as_dict()['model_transaction_policy'] = {'decoupled': True}", "answers decoupled"),
    ],
)
def test_completion_that_would_not_hold_is_refused_by_name(load: Load, statement: str, problem: str) -> None:
    """The message names the field."""
    with pytest.raises(LoadFailed, match=problem):
        load(COUNT, {**TENSORS, "max_batch_size": 8}, methods=COMPLETE.format(statement))


def test_completed_max_batch_size_limits_calls_and_requests(load: Load) -> None:
    """No call of `execute` has more rows, and a request of more rows fails alone."""
    methods = COMPLETE.format("config.set_max_batch_size(3); config.set_dynamic_batching()")
    runtime = load(COUNT, {**TENSORS}, methods=methods)
    given = answers(runtime, request(1), request(2), request(0, 4), request(3), request(4, 2))
    assert "has 4 rows, and the model takes at most 3" in str(given.pop(2))
    assert given == [3, 3, 3, 1]


@pytest.mark.parametrize(
    ("body", "config", "methods", "problem"),
    [
        (COUNT, {}, "", "net declares no input: its config.pbtxt"),
        (
            COUNT,
            {**TENSORS, "input": [{"name": "x"}]},
            "",
            "declares the input .*'name': 'x'.*needs a name, a data_type",
        ),
        (COUNT, TENSORS, "def initialize(self, args):\n    1 / 0\n\n", r"initialize\(\) of .* raised"),
        (COUNT, TENSORS, "1 / 0\n", "cannot be imported"),
        (
            COUNT,
            TENSORS,
            "pb_utils.MetricFamily\n\n",
            "pb_utils.MetricFamily is not offered, that is metrics of",
        ),
    ],
)
def test_invalid_python_model_fails_to_load(
    load: Load, body: str, config: dict[str, Any], methods: str, problem: str
) -> None:
    """The error names what is wrong."""
    with pytest.raises(LoadFailed, match=problem):
        load(body, config, methods=methods)


def test_model_without_class_or_with_failing_sample_is_refused(load: Load, tmp_path: Path) -> None:
    """Batching may not be `merge` either."""
    with pytest.raises(LoadFailed, match="batching is auto or none, not merge"):
        load(COUNT, batching="merge")
    sample = tmp_path / "sample.json"
    sample.write_text(json.dumps({"data": [[1, 2]]}))
    with pytest.raises(LoadFailed, match=r"net fails on sample.json: bad"):
        load("raise pb_utils.TritonModelException('bad')", sample_input=sample)
    assert load(COUNT, sample_input=sample).signature.isolation
    (tmp_path / "net" / "1" / "model.py").write_text("class TritonPythonModel:\n    pass\n")
    path = tmp_path / "net" / "1" / "model.py"
    deployment = Deployment("net", 1, "script", path, path.parent, 8, 1000, model_config="{}")
    with pytest.raises(LoadFailed, match="does not define a class TritonPythonModel with the method execute"):
        load_triton_model(deployment, CPU, Watchdog(1000))
