"""Requests whose right answer is known from the request alone, in each protocol, and the judge of what came.

The model `marked` doubles its rows and says beside them which version of it has run: `y = 2 x`, `v = VERSION`. So an
answer shows whose it is, that one version has computed all of it, and that it is the version that it claims to be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import numpy as np
from tests.chaos.ledger import Verdict
from tests.http.raw_http import Answer, bearer, binary_infer, request, rows_body, scoring
from tests.live_server import PRIMARY
from tests.tables import table_rows
from tritonclient.grpc import service_pb2

__all__ = [
    "GRPC_METHOD",
    "HTTP_PROTOCOLS",
    "ON_DEMAND",
    "ON_DEMAND_MODELS",
    "PAIR_NUMBERS",
    "Question",
    "grpc_request",
    "judge_http",
    "judge_message",
    "rows_of",
]

GRPC_METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
ON_DEMAND: Final = "on demand"
"""The protocol of models that are loaded when they are asked for, more than the memory holds."""
ON_DEMAND_MODELS: Final = 8
_TABLE_ROWS: Final = 8
PAIR_NUMBERS: Final = 200
"""The numbers that the classifier `pair`, with two outputs, was fitted on."""
_REFUSALS: Final = (429, 503)
_MANY_ROWS: Final = 20_000

Judge = Callable[[Answer], str]


@dataclass(frozen=True, slots=True)
class Question:
    """A request over HTTP.

    Attributes:
        message: Its bytes.
        wrong: What is wrong with an answer with status 200; empty if nothing is.
        absent: Whether 404 is an answer too, because the model may be unloaded.
    """

    message: bytes
    wrong: Judge
    absent: bool = False


def rows_of(number: int, random: Random, *, most: int = 8) -> np.ndarray:
    """Rows that no other request has: float32[rows, 4], small integers that float32 holds three times."""
    count = random.choice((1, 1, 1, random.randint(2, most)))
    return np.array([[number % 100_003, number // 100_003, place, 2] for place in range(count)], np.float32)


def _compare(rows: np.ndarray, y: Any, v: Any, version: str | None, among: Collection[int] = ()) -> str:
    values, versions = np.asarray(y, np.float64), set(np.asarray(v, np.float64).ravel().tolist())
    if values.shape != rows.shape or not np.array_equal(values, 2.0 * rows):
        return f"for {len(rows)} rows from {rows[0].tolist()} came {values.ravel()[:8].tolist()}"
    if len(versions) != 1:
        return f"versions {sorted(versions)} answered one request"
    (ran,) = versions
    if version is not None and ran != float(version):
        return f"version {ran:g} answered as version {version}"
    return f"version {ran:g} answered for a label of {sorted(among)}" if among and ran not in among else ""


def _azure(number: int, random: Random, _: Collection[int]) -> Question:
    rows = rows_of(number, random)

    def wrong(answer: Answer) -> str:
        content = answer.json()
        return _compare(rows, content["y"], content["v"], None)

    return Question(scoring("/api/v1/service/marked/score", PRIMARY, rows_body(*rows.tolist())), wrong)


def _script(number: int, random: Random, _: Collection[int]) -> Question:
    rows = rows_of(number, random)
    rows[:, 0] %= 1000  # Larger numbers tell the script to do other things.
    rows[:, 3] = number

    def wrong(answer: Answer) -> str:
        return "" if answer.json() == (3 * rows).tolist() else f"{rows[0].tolist()}: {answer.body[:100]!r}"

    return Question(scoring("/api/v1/service/tripler/score", PRIMARY, rows_body(*rows.tolist())), wrong)


def _extra(number: int, random: Random, _: Collection[int]) -> Question:
    rows = rows_of(number, random)

    def wrong(answer: Answer) -> str:
        return "" if answer.json() == (2 * rows).tolist() else f"{rows[0].tolist()}: {answer.body[:100]!r}"

    return Question(
        scoring("/api/v1/service/extra/score", PRIMARY, rows_body(*rows.tolist())), wrong, absent=True
    )


def _on_demand(_: int, random: Random, __: Collection[int]) -> Question:
    model, row = random.randrange(ON_DEMAND_MODELS), random.randrange(_TABLE_ROWS)

    def wrong(answer: Answer) -> str:
        right = np.array_equal(np.asarray(answer.json(), np.float32), table_rows(model, row + 1)[row:])
        return "" if right else f"row {row} of table {model}: {answer.body[:100]!r}"

    return Question(scoring(f"/api/v1/service/table{model}/score", PRIMARY, rows_body([row])), wrong)


def _pair(_: int, random: Random, __: Collection[int]) -> Question:
    numbers = np.array([random.randrange(PAIR_NUMBERS) for _ in range(random.choice((1, 1, 1, 2, 3)))])

    def wrong(answer: Answer) -> str:
        right = answer.json()["predict"] == np.stack([numbers % 7, numbers % 5], axis=1).tolist()
        return "" if right else f"{numbers.tolist()}: {answer.body[:100]!r}"

    rows = [[float(number)] for number in numbers]
    return Question(scoring("/api/v1/service/pair/score", PRIMARY, rows_body(*rows)), wrong)


def _infer_json(number: int, random: Random, _: Collection[int]) -> Question:
    rows = rows_of(number, random)
    tensor = {"name": "x", "shape": list(rows.shape), "datatype": "FP32", "data": rows.ravel().tolist()}
    body = json.dumps({"id": str(number), "inputs": [tensor]}).encode()

    def wrong(answer: Answer) -> str:
        content = answer.json()
        if content["id"] != str(number):
            return f"the answer of request {content['id']} came to {number}"
        outputs = {one["name"]: np.reshape(one["data"], one["shape"]) for one in content["outputs"]}
        return _compare(rows, outputs["y"], outputs["v"], content["model_version"])

    return Question(request("POST", "/v2/models/marked/infer", [bearer(PRIMARY)], body), wrong)


def _infer_binary(number: int, random: Random, _: Collection[int]) -> Question:
    rows = rows_of(number, random, most=64 if random.random() < 0.98 else _MANY_ROWS)

    def wrong(answer: Answer) -> str:
        length = int(answer.header("inference-header-content-length") or 0)
        content, raw = json.loads(answer.body[:length]), answer.body[length:]
        outputs = {}
        for one in content["outputs"]:
            size = one["parameters"]["binary_data_size"]
            outputs[one["name"]] = np.frombuffer(raw[:size], np.float32).reshape(one["shape"])
            raw = raw[size:]
        return _compare(rows, outputs["y"], outputs["v"], content["model_version"])

    return Question(binary_infer("marked", PRIMARY, rows, "FP32"), wrong)


def _label(number: int, random: Random, means: Collection[int]) -> Question:
    rows, before = rows_of(number, random), frozenset(means)
    body = json.dumps({"instances": rows.tolist()}).encode()

    def wrong(answer: Answer) -> str:
        predictions = answer.json()["predictions"]
        y, v = [one["y"] for one in predictions], [one["v"] for one in predictions]
        return _compare(rows, y, v, None, before | frozenset(means))

    return Question(
        request("POST", "/v1/models/marked/labels/stable:predict", [bearer(PRIMARY)], body), wrong
    )


HTTP_PROTOCOLS: Final[dict[str, Callable[[int, Random, Collection[int]], Question]]] = {
    "azure": _azure,
    "v2 json": _infer_json,
    "v2 binary": _infer_binary,
    "label": _label,
    "script": _script,
    "pair": _pair,
    "extra": _extra,
    ON_DEMAND: _on_demand,
}
"""Makes a request of a number; the last argument is what the label `stable` may mean, as it changes."""


def judge_http(question: Question, answer: Answer) -> tuple[Verdict, str]:
    """Judge an answer over HTTP: the verdict, and the code or the fault."""
    if answer.status == 200:
        wrong = question.wrong(answer)
        return (Verdict.WRONG, wrong) if wrong else (Verdict.RIGHT, "")
    code = answer.header("x-stoker-error-code") or answer.json().get("code") or str(answer.status)
    if answer.status == 404 and question.absent:
        return Verdict.REFUSED, "unloaded"
    if answer.status == 504:
        return Verdict.LATE, code
    if answer.status not in _REFUSALS:
        return Verdict.WRONG, f"{answer.status}: {answer.body[:300]!r}"
    if int(answer.header("retry-after") or 0) < 1:
        return Verdict.WRONG, f"{answer.status} without Retry-After: {answer.body[:300]!r}"
    return Verdict.REFUSED, code


def grpc_request(number: int, rows: np.ndarray) -> Any:
    """The rows as a ModelInferRequest for `marked`."""
    message = service_pb2.ModelInferRequest(model_name="marked", id=str(number))
    message.inputs.add(name="x", datatype="FP32", shape=rows.shape)
    message.raw_input_contents.append(rows.tobytes())
    return message


def judge_message(number: int, rows: np.ndarray, message: Any) -> str:
    """The fault of a ModelInferResponse; empty if it has none."""
    if message.id != str(number):
        return f"the answer of request {message.id} came to {number}"
    outputs = {
        one.name: np.frombuffer(raw, np.float32).reshape(one.shape)
        for one, raw in zip(message.outputs, message.raw_output_contents, strict=True)
    }
    return _compare(rows, outputs["y"], outputs["v"], message.model_version)
