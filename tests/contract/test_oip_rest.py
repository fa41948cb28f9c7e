"""The Open Inference Protocol v2 over HTTP: routes, metadata, health, errors (CONTRACT B.1, B.7)."""

from __future__ import annotations

import pytest
import tritonclient.http as triton
from tests.contract.asking import ask, infer, tensor
from tests.live_server import PRIMARY, LiveServer
from tritonclient.utils import InferenceServerException

ROW = tensor("x", "FP32", [[1, 2, 3, 4]])


def test_health_is_json(protocol_server: LiveServer) -> None:
    """Health endpoints answer 200 with the bodies of the protocol; no key is needed."""
    for path, body in (
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/scores/ready", {"name": "scores", "ready": True}),
        ("/v2/models/scores/versions/1/ready", {"name": "scores", "ready": True}),
    ):
        answer = ask(protocol_server, "GET", path, key=None)
        assert (answer.status, answer.json()) == (200, body), path
        assert ask(protocol_server, "HEAD", path, key=None).status == 200


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_the_server_tells_its_extensions(protocol_server: LiveServer, path: str) -> None:
    """Only supported ones are listed."""
    described = ask(protocol_server, "GET", path).json()
    assert described["name"] == "stoker"
    assert set(described["extensions"]) == {
        "classification",
        "model_repository",
        "model_repository(unload_dependents)",
        "model_configuration",
        "schedule_policy",
        "sequence",
        "binary_tensor_data",
        "parameters",
        "statistics",
        "generate",
        "trace",
        "logging",
    }


@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_a_model_tells_its_tensors(protocol_server: LiveServer, version: str) -> None:
    """Names, datatypes and shapes with the batch axis, for each kind of model."""
    described = {}
    for model in ("scores", "pair", "texts", "scaled", "sequence"):
        answer = ask(protocol_server, "GET", f"/v2/models/{model}{version}")
        assert answer.status == 200
        content = answer.json()
        assert (content["name"], content["versions"]) == (model, ["1"])
        assert content["platform"] == "onnxruntime_onnx"
        described[model] = [
            [(info["name"], info["datatype"], info["shape"]) for info in content[side]]
            for side in ("inputs", "outputs")
        ]
    assert described == {
        "scores": [[("x", "FP32", [-1, 4])], [("y", "FP32", [-1, 3])]],
        "pair": [
            [("a", "FP32", [-1, 2]), ("b", "INT64", [-1, 3])],
            [("sums", "FP32", [-1]), ("twice", "INT64", [-1, 3])],
        ],
        "texts": [[("words", "BYTES", [-1])], [("same", "BYTES", [-1])]],
        "scaled": [[("x", "FP32", [3]), ("k", "FP32", [])], [("y", "FP32", [3]), ("again", "FP32", [])]],
        "sequence": [
            [("tokens", "INT64", [-1, -1])],
            [("last", "INT64", [-1]), ("doubled", "INT64", [-1, -1])],
        ],
    }


def test_every_datatype_has_its_name(protocol_server: LiveServer) -> None:
    """The thirteen numeric datatypes, by the protocol's names."""
    described = ask(protocol_server, "GET", "/v2/models/every").json()
    for info in (*described["inputs"], *described["outputs"]):
        assert info["name"].endswith("_" + info["datatype"])
        assert info["shape"] == [-1, 2]
    assert len(described["inputs"]) == 13


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/unknown",
        "/v2/models/unknown/infer",
        "/v2/models/unknown/ready",
        "/v2/models/a%2Fb/infer",
        "/v2/models/caf%C3%A9/infer",
        "/v2/models/scores/versions/9",
        "/v2/models/scores/versions/9/infer",
        "/v2/models/scores/versions/999999999999999999999/infer",
        "/v2/models/scores/versions/one/infer",
    ],
)
def test_unknown_models_and_versions_are_not_found(protocol_server: LiveServer, path: str) -> None:
    """Names with an encoded slash or letters beyond ASCII are names like others."""
    method = "POST" if path.endswith("infer") else "GET"
    answer = ask(protocol_server, method, path, {"inputs": [ROW]} if method == "POST" else None)
    assert answer.status == 404
    assert answer.header("content-type") == "application/json"
    assert list(answer.json()) == ["error"]
    assert answer.json()["error"].lower().endswith("not found")


def test_a_version_may_have_leading_zeros(protocol_server: LiveServer) -> None:
    """`01` is 1, as for Triton."""
    assert infer(protocol_server, "scores/versions/01", ROW).json()["model_version"] == "1"


def test_a_name_is_decoded_once(protocol_server: LiveServer) -> None:
    """`%6F` is `o`, and `%256F` is not."""
    assert ask(protocol_server, "GET", "/v2/models/sc%6Fres").status == 200
    assert ask(protocol_server, "GET", "/v2/models/sc%256Fres").status == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v2/models/scores/infer", "POST"),
        ("PUT", "/v2/models/scores/infer", "POST"),
        ("POST", "/v2/health/live", "GET"),
        ("POST", "/v2", "GET"),
        ("DELETE", "/v2/models/scores", "GET"),
    ],
)
def test_another_method_is_not_allowed(
    protocol_server: LiveServer, method: str, path: str, allowed: str
) -> None:
    """405 in the protocol's shape, with the methods that there are."""
    answer = ask(protocol_server, method, path)
    assert (answer.status, answer.json()) == (405, {"error": "Method Not Allowed"})
    assert allowed in (answer.header("allow") or "")


@pytest.mark.parametrize(
    "path",
    ["/v2/nothing", "/v2/models/scores/nothing", "/v2/health", "/v2/models/scores/versions/1/trace/setting"],
)
def test_an_unknown_path_is_not_found(protocol_server: LiveServer, path: str) -> None:
    """404 in the protocol's shape."""
    answer = ask(protocol_server, "GET", path)
    assert (answer.status, answer.json()) == (404, {"error": "Not Found"})


@pytest.mark.parametrize(
    ("method", "path", "extension"),
    [
        ("GET", "/v2/systemsharedmemory/status", "system_shared_memory"),
    ],
)
def test_path_of_an_unsupported_extension_gets_501(
    protocol_server: LiveServer, method: str, path: str, extension: str
) -> None:
    """501 names the extension."""
    answer = ask(protocol_server, method, path)
    assert (answer.status, answer.json()) == (501, {"error": f"{extension} extension is not supported"})


@pytest.mark.parametrize(
    ("path", "way"),
    [
        ("/v2/models/scores/generate", "send its tensors to infer"),
        ("/v2/models/script/versions/1/generate_stream", "post bodies to its scoring URI"),
    ],
)
def test_generate_is_for_scripts_that_yield(protocol_server: LiveServer, path: str, way: str) -> None:
    """For others 501 names the alternative, and callers without a key learn nothing."""
    answer = ask(protocol_server, "POST", path, b"{}")
    assert (answer.status, way in answer.json()["error"]) == (501, True)
    assert ask(protocol_server, "POST", path, b"{}", key=None).status == 401


def test_nothing_can_be_registered_of_cuda(protocol_server: LiveServer) -> None:
    """Where shared memory is off. What clients ask before has its answer: there is nothing, which can be let go."""
    with triton.InferenceServerClient(f"127.0.0.1:{protocol_server.port}") as client:
        key = {"Authorization": f"Bearer {PRIMARY}"}
        assert client.get_cuda_shared_memory_status(headers=dict(key)) == []
        client.unregister_cuda_shared_memory(headers=dict(key))
        with pytest.raises(InferenceServerException, match="cuda_shared_memory extension is not supported"):
            client.register_cuda_shared_memory("a", b"handle", 0, 64, headers=dict(key))
        with pytest.raises(InferenceServerException, match="Unable to find cuda shared memory region: 'a'"):
            client.get_cuda_shared_memory_status("a", headers=dict(key))
    assert ask(protocol_server, "GET", "/v2/cudasharedmemory/status", key=None).status == 401
    assert ask(protocol_server, "POST", "/v2/cudasharedmemory/unregister", key=None).status == 401


def test_infer_needs_the_key(protocol_server: LiveServer) -> None:
    """Without it the body is not even looked at; the error has the protocol's shape, at both paths."""
    for more in ([], [("Accept-Encoding", "gzip")]):
        answer = ask(protocol_server, "POST", "/v2/models/scores/infer", b"{", more, key=None)
        assert answer.status == 401
        assert list(answer.json()) == ["error"]
        assert answer.header("www-authenticate")


def test_an_entry_script_has_no_tensors(protocol_server: LiveServer) -> None:
    """Its metadata says so, and infer names the way."""
    described = ask(protocol_server, "GET", "/v2/models/script").json()
    assert (described["inputs"], described["outputs"], described["platform"]) == ([], [], "stoker_script")
    answer = infer(protocol_server, "script", ROW)
    assert answer.status == 400
    assert "scoring URI" in answer.json()["error"]
