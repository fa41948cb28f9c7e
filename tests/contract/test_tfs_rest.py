"""TensorFlow Serving's REST API (CONTRACT C.1 to C.5), by plain `requests`, as its users call it."""

from __future__ import annotations

import base64
import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from tests.contract.in_process import InProcessServer, script
from tests.contract.protocol_models import DATATYPES, MATRIX
from tests.live_server import PRIMARY, LiveServer
from tests.patience import PATIENCE_S

from stoker.deployment import Deployment
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.runtimes.packed import PackedRuntime
from stoker.runtimes.signatures import SignaturesRuntime
from stoker.settings.versions import State, VersionStatus
from stoker.tensors import ModelTensors, NamedSignature, TensorInfo
from stoker.wire.tfs_examples import entry_of, example_of

ROWS = [[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 1.5]]
SCORES = (np.array(ROWS, np.float32) @ MATRIX).tolist()
KEY = {"Authorization": f"Bearer {PRIMARY}"}


def url(server: LiveServer, path: str) -> str:
    """A path below the API's root."""
    return f"http://127.0.0.1:{server.port}/v1/models/{path}"


def post(server: LiveServer, path: str, body: Any, **headers: str) -> requests.Response:
    """Post JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return requests.post(url(server, path), data=data, headers={**KEY, **headers}, timeout=PATIENCE_S)


def predict(server: LiveServer, model: str, **body: Any) -> Any:
    """Return the answer of predict, which has to be 200."""
    answer = post(server, f"{model}:predict", body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def refused(answer: requests.Response, status: int, part: str) -> None:
    """Assert that a request was refused, and why."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    assert part in answer.json()["error"]


def test_rows_and_columns(protocol_server: LiveServer) -> None:
    """One input needs no name, in either format; the answer has the format of the request."""
    for given in (ROWS, [{"x": row} for row in ROWS]):
        assert predict(protocol_server, "scores", instances=given) == {"predictions": SCORES}
    for columns in (ROWS, {"x": ROWS}):
        assert predict(protocol_server, "scores", inputs=columns) == {"outputs": SCORES}


def test_several_inputs_and_outputs(protocol_server: LiveServer) -> None:
    """Rows are objects of inputs and of outputs; columns an object of tensors."""
    instances = [{"a": [1, 2], "b": [1, 2, 3]}, {"a": [3, 4], "b": [4, 5, 6]}]
    assert predict(protocol_server, "pair", instances=instances) == {
        "predictions": [{"sums": 3.0, "twice": [2, 4, 6]}, {"sums": 7.0, "twice": [8, 10, 12]}]
    }
    columns = {"a": [[1, 2]], "b": [[1, 2, 3]]}
    assert predict(protocol_server, "pair", inputs=columns) == {
        "outputs": {"sums": [3.0], "twice": [[2, 4, 6]]}
    }


def test_no_batch_axis(protocol_server: LiveServer) -> None:
    """Columns may be scalars; rows need a batch axis, which such a model has not."""
    columns = {"x": [1, 2, 3], "k": 0.5}
    assert predict(protocol_server, "scaled", inputs=columns) == {
        "outputs": {"y": [0.5, 1.0, 1.5], "again": 0.5}
    }
    refused(post(protocol_server, "scaled:predict", {"instances": [columns]}), 400, "")


def test_strings_and_base64(protocol_server: LiveServer) -> None:
    """Bytes go in as `{"b64": ...}` anywhere, and come back so where the output's name says bytes."""
    words = ["é", {"b64": "w6k="}, {"b64": ""}]
    assert predict(protocol_server, "texts", instances=words) == {"predictions": ["é", "é", ""]}
    named = [{"image_bytes": {"b64": "w6k="}}]
    for instances in (named, [{"b64": "w6k="}]):
        assert predict(protocol_server, "bytes", instances=instances) == {"predictions": [{"b64": "w6k="}]}


def test_tokens_that_are_no_json(protocol_server: LiveServer) -> None:
    """NaN and Infinity are read and written; what follows the first value is ignored."""
    answer = post(
        protocol_server,
        "scores:predict",
        b'\xef\xbb\xbf {"instances": [[NaN, 0, 0, 0], [Infinity, 0, 0, 0]]} trailing',
    )
    first, second = answer.json()["predictions"]
    assert [math.isnan(value) for value in first] == [True, True, True]
    assert second[0] == math.inf
    assert b"NaN" in answer.content


@pytest.mark.parametrize("model", ["scores", "scores/versions/1", "scores/versions/01"])
@pytest.mark.parametrize("verb", ["predict", "PREDICT"])
def test_paths_do_not_mind_case(protocol_server: LiveServer, model: str, verb: str) -> None:
    """TensorFlow Serving's patterns are case-insensitive; names are not."""
    target = url(protocol_server, f"{model}:{verb}").replace("/v1/models", "/V1/Models")
    answer = requests.post(target, json={"instances": ROWS}, headers=KEY, timeout=PATIENCE_S)
    assert answer.json() == {"predictions": SCORES}


def test_gzip_and_any_content_type(protocol_server: LiveServer) -> None:
    """Compressed bodies are read; the content type is not looked at."""
    body = gzip.compress(json.dumps({"instances": ROWS}).encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "image/png"}
    assert post(protocol_server, "scores:predict", body, **headers).json() == {"predictions": SCORES}


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_dtype(protocol_server: LiveServer, datatype: str) -> None:
    """FP16 and UINT16 too, which TensorFlow Serving refuses."""
    dtype = np.dtype(DATATYPES[datatype])
    if dtype.kind in "iu":
        value: list[Any] = [int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)]
    else:
        value = [True, False] if dtype.kind == "b" else [-0.5, 1]
    instance = {
        f"in_{name}": value if name == datatype else [False, False] if name == "BOOL" else [0, 0]
        for name in DATATYPES
    }
    (row,) = predict(protocol_server, "every", instances=[instance])["predictions"]
    assert row[f"out_{datatype}"] == value
    assert all(isinstance(item, bool) == (dtype.kind == "b") for item in row[f"out_{datatype}"])


@pytest.mark.parametrize(
    ("model", "body", "complaint"),
    [
        ("scores", {}, "Missing 'inputs' or 'instances' key"),
        ("scores", {"instances": ROWS, "inputs": ROWS}, "both"),
        ("scores", {"instances": []}, "No values in 'instances' array"),
        ("scores", {"instances": 3}, "must be an array"),
        ("scores", {"instances": ROWS, "signature_name": 3}, "must be a string"),
        ("scores", {"instances": ROWS, "signature_name": "x"}, 'Serving signature name: "x" not found'),
        (
            "scores",
            {"instances": [[1, 2, 3, 4], [1, 2, 3]]},
            "unexpected size: 3 at level: 1 expected size: 4",
        ),
        ("scores", {"instances": [[1, 2, 3, [4]]]}, "unexpected size"),
        ("scores", {"instances": [[1, 2, 3]]}, "x float32[?,4]"),
        (
            "scores",
            {"instances": [[1, 2, 3, "4"]]},
            'JSON Value: "4" Type: String is not of expected type: float',
        ),
        ("scores", {"instances": [[1, 2, 3, None]]}, "Type: Null"),
        ("scores", {"instances": [[1, 2, 3, True]]}, "Type: True"),
        ("scores", {"instances": [[1, 2, 3, 1e39]]}, "too large for float32"),
        ("scores", {"instances": [{"x": ROWS[0], "z": 1}]}, "must be objects with the keys x"),
        ("scores", {"instances": [{"x": ROWS[0]}, ROWS[1]]}, "must be objects with the keys x"),
        ("scores", {"inputs": {"z": ROWS}}, "Missing named input: x"),
        ("pair", {"inputs": {"a": [[1, 2]], "b": [[1, 2, 3]], "c": 1}}, "Unknown named input: 'c'"),
        ("scores", {"inputs": {"x": ROWS, "y": ROWS}}, "Unknown named input: 'y'"),
        ("pair", {"instances": [[1, 2]]}, "must be objects with the keys a, b"),
        ("pair", {"inputs": [[1, 2]]}, "must be an object with the inputs a, b"),
        ("pair", {"inputs": {"a": [[1, 2]], "b": [[1, 2, 3], [4, 5, 6]]}}, "same number of rows"),
        ("pair", {"instances": [{"a": [1, 2], "b": [1.0, 2, 3]}]}, "is not of expected type: int64"),
        ("texts", {"instances": [{"b64": "w6k=", "x": 1}]}, "words"),
        ("texts", {"instances": [{"b64": "%%%"}]}, "base64"),
        ("texts", {"instances": [3]}, "is not of expected type: string"),
        ("sequence", {"instances": [[]]}, "out of data bounds"),
    ],
)
def test_body_that_does_not_fit_gets_400(
    protocol_server: LiveServer, model: str, body: dict[str, Any], complaint: str
) -> None:
    """The error has the reason."""
    refused(post(protocol_server, f"{model}:predict", body), 400, complaint)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b"x", "JSON Parse error: Invalid value. at offset: 0"),
        (b'{"instances": [[1e400, 0, 0, 0]]}', "JSON Parse error"),
        (b"[]", "not an object"),
        (b"\xff", "JSON Parse error"),
        (b'{"instances":' + b"[" * 200_000, "nested"),
    ],
)
def test_body_that_is_no_json_gets_400_quickly(
    protocol_server: LiveServer, body: bytes, complaint: str
) -> None:
    """The answer is 400 at once, however deeply the body is nested."""
    before_s = protocol_server.computed_s()
    refused(post(protocol_server, "scores:predict", body), 400, complaint)
    assert protocol_server.computed_s() - before_s < 5


def test_a_body_that_is_too_large_is_refused(protocol_server: LiveServer) -> None:
    """413 in the API's shape."""
    refused(post(protocol_server, "scores:predict", b" " * ((1 << 20) + 1)), 413, "MiB")


def test_the_key_is_needed(protocol_server: LiveServer) -> None:
    """401 in the API's shape, of metadata too; the state needs none: probes ask for it."""
    answer = requests.post(
        url(protocol_server, "scores:predict"), json={"instances": ROWS}, timeout=PATIENCE_S
    )
    refused(answer, 401, "key")
    described = requests.get(url(protocol_server, "scores/metadata"), timeout=PATIENCE_S)
    refused(described, 401, "key")
    assert described.headers["www-authenticate"] == "Bearer"
    assert requests.get(url(protocol_server, "scores"), timeout=PATIENCE_S).status_code == 200


def test_classify(protocol_server: LiveServer) -> None:
    """Pairs of label and score under the key `results`; the features are the model's inputs."""
    examples = [{"x": ROWS[0]}, {"x": ROWS[1]}]
    answer = post(protocol_server, "scores:classify", {"examples": examples})
    assert answer.json() == {
        "results": [[[str(index), score] for index, score in enumerate(row)] for row in SCORES]
    }


def test_context_is_shared_by_examples(protocol_server: LiveServer) -> None:
    """Features of the context are those of every example that has none of its own."""
    context = {"x": ROWS[0]}
    answer = post(protocol_server, "scores:classify", {"context": context, "examples": [{}, {"x": ROWS[1]}]})
    assert [[pair[1] for pair in row] for row in answer.json()["results"]] == SCORES


def test_regress(protocol_server: LiveServer) -> None:
    """One number for each example."""
    examples = [{"tokens": [1, 2, -1]}, {"tokens": [1, -1, -1]}]
    assert post(protocol_server, "padded:regress", {"examples": examples}).json() == {"results": [2, 1]}


@pytest.mark.parametrize(
    ("target", "body", "complaint"),
    [
        ("scores:classify", {}, "'examples'"),
        ("scores:classify", {"examples": []}, "'examples'"),
        ("scores:classify", {"examples": [3]}, "object of features"),
        ("scores:classify", {"examples": [{"z": [1]}]}, "must have the features x"),
        ("scores:classify", {"examples": [{"x": [1, 2.5, 3, 4]}]}, "several types"),
        ("scores:classify", {"examples": [{"x": None}]}, "numbers or strings"),
        ("scores:classify", {"examples": [{"x": [[1, 2, 3, 4]]}]}, "numbers or strings"),
        ("scores:regress", {"examples": [{"x": ROWS[0]}]}, "regress needs one number"),
        ("pair:classify", {"examples": [{"a": [1.0, 2.0], "b": [1, 2, 3]}]}, "cannot classify"),
        ("script:classify", {"examples": [{"x": 1}]}, "entry script"),
    ],
)
def test_examples_that_do_not_fit_are_refused(
    protocol_server: LiveServer, target: str, body: dict[str, Any], complaint: str
) -> None:
    """400 names the feature or the method."""
    refused(post(protocol_server, target, body), 400, complaint)


def signatures() -> SignaturesRuntime:
    """A model of two signatures, of which the second takes examples."""
    deployment = Deployment("model", 1, "tensorflow", Path("model"), Path(), 16, 1 << 20)

    def embed(feeds: Any) -> dict[str, np.ndarray]:
        return {"embedding": feeds["x"] + 1}

    def judge(feeds: Any) -> dict[str, np.ndarray]:
        classes = np.array([[b"short", b"long"]] * len(feeds["inputs"]), object)
        scores = np.array([[0.5, len(example)] for example in feeds["inputs"]], np.float32)
        return {"classes": classes, "scores": scores}

    runs = {"embed": embed, "judge": judge}
    named = [
        NamedSignature(
            "embed",
            ModelTensors(
                (TensorInfo("x", "float32", (-1, 2)),), (TensorInfo("embedding", "float32", (-1, 2)),), True
            ),
        ),
        NamedSignature(
            "judge",
            ModelTensors(
                (TensorInfo("inputs", "string", (-1,)),),
                (TensorInfo("classes", "string", (-1, 2)), TensorInfo("scores", "float32", (-1, 2))),
                True,
            ),
            "classify",
        ),
    ]
    return SignaturesRuntime(
        named, {one.name: PackedRuntime(runs[one.name], one.tensors, deployment) for one in named}
    )


def test_requests_name_a_signature() -> None:
    """By `signature_name`, in predict and classify; without it the first is meant, in the other protocols too."""
    example = example_of([entry_of("a", [1])])
    with InProcessServer(signatures()) as server:

        def post(verb: str, **body: Any) -> Any:
            return server.ask("POST", f"/v1/models/model:{verb}", body=json.dumps(body).encode())

        for name in ({}, {"signature_name": "embed"}):
            assert post("predict", instances=[[1, 2]], **name).json() == {"predictions": [[2.0, 3.0]]}
        assert server.ask(body=b'{"data": [[1, 2]]}').json() == [[2.0, 3.0]]
        encoded = {"b64": base64.b64encode(example).decode()}
        assert post("predict", instances=[encoded], signature_name="judge").json() == {
            "predictions": [{"classes": ["short", "long"], "scores": [0.5, len(example)]}]
        }
        judged = post("classify", examples=[{"a": 1}], signature_name="judge")
        assert judged.json() == {"results": [[["short", 0.5], ["long", len(example)]]]}
        for refusal, part in (
            (post("predict", instances=[[1, 2]], signature_name="x"), "served here: embed, judge"),
            (post("regress", examples=[{"a": 1}], signature_name="judge"), "it is for classify"),
        ):
            assert (refusal.status, refusal.header("x-stoker-error-code")) == (400, "invalid_input")
            assert part in refusal.json()["error"]
        signature = server.ask("GET", "/v1/models/model/metadata").json()["metadata"]["signature_def"][
            "signature_def"
        ]
    assert {name: one["method_name"] for name, one in signature.items()} == {
        "embed": "tensorflow/serving/predict",
        "judge": "tensorflow/serving/classify",
    }
    assert signature["judge"]["inputs"]["inputs"]["dtype"] == "DT_STRING"


@pytest.mark.parametrize("target", ["scores", "scores/versions/1", "scores/versions/001"])
def test_status(protocol_server: LiveServer, target: str) -> None:
    """Numbers are strings, as protobuf's JSON has them."""
    assert requests.get(url(protocol_server, target), timeout=PATIENCE_S).json() == {
        "model_version_status": [
            {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        ]
    }


@pytest.mark.parametrize(
    ("state", "reason", "error", "status"),
    [
        ("END", "the weights are none", "load_failed", ("INTERNAL", "the weights are none")),
        ("END", "not loaded within 600 s", "load_timeout", ("DEADLINE_EXCEEDED", "not loaded within 600 s")),
        ("END", "model.onnx was changed", "corrupt_model", ("DATA_LOSS", "model.onnx was changed")),
        ("END", "holds no model", "repository_error", ("FAILED_PRECONDITION", "holds no model")),
        ("END", "unloaded", "", ("OK", "")),
        ("AVAILABLE", "the new files are no model", "load_failed", ("OK", "")),
    ],
)
def test_status_of_a_version_that_is_not_loaded(
    state: State, reason: str, error: str, status: tuple[str, str]
) -> None:
    """It is 200 with the error of the load, and without one for an unloaded version or the one still served."""
    code, message = status
    entry = {"version": "7", "state": state, "status": {"error_code": code, "error_message": message}}
    with InProcessServer(script(lambda raw_data: raw_data)) as server:
        first = server.gateway.directory.models["model"].versions["1"]
        versions = {"1": first, "7": ServedVersion(VersionStatus(1, state, reason, error))}
        server.gateway.route("model", ServedModel(versions, "1"))
        assert server.ask("GET", "/v1/models/model/versions/7").json() == {"model_version_status": [entry]}
        answer = server.ask("GET", "/v1/models/model")
    well, failed = answer.json()["model_version_status"]
    assert (answer.status, well["status"]["error_code"], failed) == (200, "OK", entry)


def test_a_refused_get_has_the_headers_of_a_refused_post() -> None:
    """They have the retry time and that the model is not to blame, for each refusal."""
    with InProcessServer(script(lambda raw_data: raw_data)) as server:
        loading = ServedModel({"7": ServedVersion(VersionStatus(1, "LOADING"))}, "7")
        server.gateway.route("model", loading)
        answers = [
            server.ask("GET", "/v1/models/model/metadata"),
            server.ask("POST", "/v1/models/model:predict", body=b"{}"),
        ]
    names = ("retry-after", "x-ms-run-function-failed", "x-stoker-error-code")
    assert [answer.status for answer in answers] == [503, 503]
    assert [[answer.header(name) for name in names] for answer in answers] == [
        ["1", "False", "not_ready"]
    ] * 2


@pytest.mark.parametrize("target", ["pair/metadata", "pair/versions/1/metadata"])
def test_metadata(protocol_server: LiveServer, target: str) -> None:
    """The doubled key is the API's own."""

    def described(name: str, dtype: str, *sizes: int) -> dict[str, Any]:
        dim = [{"size": str(size), "name": ""} for size in sizes]
        return {"dtype": dtype, "tensor_shape": {"dim": dim, "unknown_rank": False}, "name": f"{name}:0"}

    assert requests.get(url(protocol_server, target), headers=KEY, timeout=PATIENCE_S).json() == {
        "model_spec": {"name": "pair", "signature_name": "", "version": "1"},
        "metadata": {
            "signature_def": {
                "signature_def": {
                    "serving_default": {
                        "inputs": {
                            "a": described("a", "DT_FLOAT", -1, 2),
                            "b": described("b", "DT_INT64", -1, 3),
                        },
                        "outputs": {
                            "sums": described("sums", "DT_FLOAT", -1),
                            "twice": described("twice", "DT_INT64", -1, 3),
                        },
                        "method_name": "tensorflow/serving/predict",
                    }
                }
            }
        },
    }


@pytest.mark.parametrize(
    ("method", "target", "status", "complaint"),
    [
        ("GET", "unknown", 404, "Could not find any versions of model unknown"),
        ("GET", "scores/versions/9", 404, "Could not find version 9 of model scores"),
        ("GET", "scores/labels/beta", 400, "Unrecognized servable version label: beta"),
        ("GET", "unknown/metadata", 404, "Servable not found for request: Latest(unknown)"),
        ("POST", "unknown:predict", 404, "Servable not found for request: Latest(unknown)"),
        ("POST", "a%2Fb:predict", 404, "Servable not found for request: Latest(a/b)"),
        ("POST", "unknown/versions/50:predict", 404, "Servable not found for request: Specific(unknown, 50)"),
        ("POST", "scores/versions/50:predict", 404, "Servable not found for request: Specific(scores, 50)"),
        ("POST", "scores/versions/99999999999999999999:predict", 400, "Failed to convert version"),
        ("GET", "scores/versions/99999999999999999999", 400, "Failed to convert version"),
        ("GET", f"scores/versions/{'9' * 5000}", 400, "Failed to convert version"),
        ("POST", "scores/labels/beta:predict", 400, "Unrecognized servable version label: beta"),
        ("GET", "scores:predict", 400, "Malformed request: GET /v1/models/scores:predict"),
        ("PUT", "scores:predict", 400, "Malformed request: PUT"),
        ("POST", "scores", 400, "Malformed request: POST"),
        ("POST", "scores:explain", 400, "Malformed request"),
        ("GET", "scores/version/1", 400, "Malformed request"),
        ("GET", "scores/versions/abc", 400, "Malformed request"),
        ("GET", "scores/versions/1/labels/beta", 400, "Malformed request"),
        ("GET", "", 400, "Missing model name in request."),
    ],
)
def test_paths_that_are_none(
    protocol_server: LiveServer, method: str, target: str, status: int, complaint: str
) -> None:
    """A wrong verb is 400, an unknown version 404, an unknown label 400."""
    answer = requests.request(
        method, url(protocol_server, target), json={"instances": ROWS}, headers=KEY, timeout=PATIENCE_S
    )
    refused(answer, status, complaint)


def test_paths_outside_of_the_api(protocol_server: LiveServer) -> None:
    """`/v1` alone is malformed; other roots are not the API's."""
    root = f"http://127.0.0.1:{protocol_server.port}"
    refused(requests.get(f"{root}/v1", timeout=PATIENCE_S), 400, "Malformed request: GET /v1")
    refused(requests.get(f"{root}/v1/nothing", timeout=PATIENCE_S), 400, "Malformed request: GET /v1/nothing")
    assert requests.get(f"{root}/v3/models", timeout=PATIENCE_S).status_code == 404


def test_an_entry_script_has_no_signature(protocol_server: LiveServer) -> None:
    """It is listed with its state; its tensors are not known."""
    assert requests.get(url(protocol_server, "script"), timeout=PATIENCE_S).status_code == 200
    refused(
        requests.get(url(protocol_server, "script/metadata"), headers=KEY, timeout=PATIENCE_S),
        400,
        "entry script",
    )
