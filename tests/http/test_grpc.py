"""The Open Inference Protocol over gRPC on running servers, as users of `tritonclient` call it."""

from __future__ import annotations

import asyncio
import io
import json
import queue
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.http as triton_http
from google.protobuf.json_format import ParseDict
from tests.contract.protocol_models import DATATYPES, MATRIX, write_models
from tests.http.raw_http import rows_body, scoring
from tests.live_server import PRIMARY, LiveServer, free_port, run_stoker, wait_until
from tests.patience import PATIENCE_S
from tests.tiny_models import BATCHED_SCRIPT, BODY_SCRIPT, HOLD, Gate, write_doubler, write_script
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

KEY = {"authorization": f"Bearer {PRIMARY}"}
ROWS = np.array([[1, 2, 3, 4], [0, 0, 0, 1]], np.float32)
SCORES = ROWS @ MATRIX
TLS = Path(__file__).parents[1] / "tls"

_DEPLOYMENT = """
frontends: 2
timeout_ms: 120000
max_body_mb: 1
models:
  - {path: models/scores.onnx, max_batch_rows: 64}
  - {path: models/scores.onnx, name: counted}
  - {path: models/scores.onnx, name: kept, cache_mb: 1}
  - {path: models/body/score.py, name: keeping, cache_mb: 1}
  - {path: models/pair.onnx}
  - {path: models/every.onnx}
  - {path: models/texts.onnx}
  - {path: models/scaled.onnx}
  - {path: models/body/score.py, name: script}
  - {path: models/batched/score.py, name: batched}
"""


@dataclass(frozen=True)
class Served:
    """A running server with gRPC, and the gate of its batched script."""

    server: LiveServer
    grpc_port: int
    gate: Gate

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two frontends on one gRPC port, with models of rows, of several tensors and of none, and scripts."""
    scratch, grpc_port = tmp_path_factory.mktemp("grpc"), free_port()
    models = scratch / "deployment" / "models"
    write_models(models)
    write_script(models / "body", BODY_SCRIPT)
    write_script(models / "batched", BATCHED_SCRIPT)
    deployment = models.parent / "deployment.yaml"
    deployment.write_text(_DEPLOYMENT)
    with LiveServer(scratch, "--config", deployment, "--grpc-port", str(grpc_port)) as server:
        yield Served(server, grpc_port, Gate(models / "batched"))


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[triton.InferenceServerClient]:
    """NVIDIA's client."""
    with triton.InferenceServerClient(served.address) as made:
        yield made


@pytest.fixture(scope="module")
def admin(served: Served) -> dict[str, str]:
    """The metadata with the admin key."""
    shown = run_stoker("keys", "show", "admin", "--workspace", served.server.workspace)
    return {"authorization": f"Bearer {shown.stdout.strip()}"}


def make_input(name: str, array: np.ndarray, datatype: str, *, of: Any = triton) -> Any:
    """An input with its data."""
    made = of.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def infer(client: triton.InferenceServerClient, model: str, *inputs: Any, **options: Any) -> Any:
    """Infer with the key."""
    return client.infer(model, list(inputs), **{"headers": KEY, "client_timeout": PATIENCE_S, **options})


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    """The requests with which a client begins."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("scores", "1")
    assert client.get_server_metadata(headers=KEY).name == "stoker"
    described = client.get_model_metadata("pair", headers=KEY, as_json=True)
    assert described == {
        "name": "pair",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [
            {"name": "a", "datatype": "FP32", "shape": ["-1", "2"]},
            {"name": "b", "datatype": "INT64", "shape": ["-1", "3"]},
        ],
        "outputs": [
            {"name": "sums", "datatype": "FP32", "shape": ["-1"]},
            {"name": "twice", "datatype": "INT64", "shape": ["-1", "3"]},
        ],
    }


@pytest.mark.parametrize("model", ["scores", "pair", "texts", "scaled", "script", "batched"])
def test_configurations_are_those_of_http(
    served: Served, client: triton.InferenceServerClient, model: str
) -> None:
    """The same fields with the same values, for models with rows and without."""
    described = client.get_model_config(model, "1", headers=KEY).config
    with triton_http.InferenceServerClient(f"127.0.0.1:{served.server.port}") as http:
        expected = http.get_model_config(model, headers=KEY)
    assert ParseDict(expected, type(described)()) == described


def test_rows_are_scored(client: triton.InferenceServerClient) -> None:
    """With the caller's id; counted like requests of HTTP."""
    answer = infer(client, "scores", make_input("x", ROWS, "FP32"), request_id="r-1", model_version="1")
    np.testing.assert_allclose(answer.as_numpy("y"), SCORES)
    assert (answer.get_response().model_name, answer.get_response().id) == ("scores", "r-1")


def test_requests_are_counted(served: Served, client: triton.InferenceServerClient) -> None:
    """Answers, rows and refusals are in the metrics, and in the statistics of the protocol."""
    infer(client, "counted", make_input("x", ROWS, "FP32"))
    with pytest.raises(InferenceServerException):
        infer(client, "counted", make_input("x", ROWS[:, :3], "FP32"))

    def metric(name: str, **labels: str) -> float:
        return served.server.metric(f"stoker_{name}_total", model="counted", **labels)

    def counted() -> list[float]:
        refusals = [metric("rejections", reason="malformed")]
        return [metric("rows"), metric("requests", status="200"), *refusals]

    assert counted() == [2, 1, 1], "two rows, one answer and one refusal, once the callers have their answers"
    (described,) = client.get_inference_statistics("counted", "1", headers=KEY).model_stats
    assert (described.name, described.version) == ("counted", "1")
    assert (described.inference_count, described.inference_stats.success.count) == (2, 1)


def test_rows_of_many_callers_meet_and_come_back_to_each(client: triton.InferenceServerClient) -> None:
    """Answers are not swapped, whatever is batched together."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    rows = np.random.default_rng(5).standard_normal((60, 4)).astype(np.float32)
    for number, row in enumerate(rows):
        client.async_infer(
            "scores",
            [make_input("x", row[None], "FP32")],
            lambda result, error: answers.put((result, error)),
            request_id=str(number),
            headers=KEY,
        )
    for _ in rows:
        result, error = answers.get(timeout=PATIENCE_S)
        assert error is None
        number = int(result.get_response().id)
        np.testing.assert_allclose(result.as_numpy("y"), rows[number, None] @ MATRIX, rtol=1e-5, atol=1e-5)


def test_several_inputs_and_a_choice_of_outputs(client: triton.InferenceServerClient) -> None:
    """The outputs asked for, in that order."""
    a, b = np.array([[1, 2], [3, 4]], np.float32), np.array([[1, 2, 3], [4, 5, 2**40]])
    inputs = [make_input("b", b, "INT64"), make_input("a", a, "FP32")]
    outputs = [triton.InferRequestedOutput("twice"), triton.InferRequestedOutput("sums")]
    answer = infer(client, "pair", *inputs, outputs=outputs)
    assert [output.name for output in answer.get_response().outputs] == ["twice", "sums"]
    np.testing.assert_array_equal(answer.as_numpy("twice"), 2 * b)
    np.testing.assert_array_equal(answer.as_numpy("sums"), [3, 7])
    (only,) = infer(client, "pair", *inputs, outputs=outputs[:1]).get_response().outputs
    assert only.name == "twice"


def test_every_numeric_datatype(client: triton.InferenceServerClient) -> None:
    """Each comes back as it was sent, the extreme numbers included."""
    arrays = {}
    for name, dtype in DATATYPES.items():
        kind = np.dtype(dtype)
        low, high = (np.iinfo(kind).min, np.iinfo(kind).max) if kind.kind in "iu" else (0, 1)
        arrays[name] = np.array([[low, high], [1, 0]], kind)
    answer = infer(
        client, "every", *(make_input(f"in_{name}", array, name) for name, array in arrays.items())
    )
    for name, array in arrays.items():
        back = answer.as_numpy(f"out_{name}")
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


def test_strings(client: triton.InferenceServerClient) -> None:
    """Empty ones, zero bytes and others than ASCII."""
    words = np.array(["café".encode(), b"", b"a\0b"], object)
    assert (
        infer(client, "texts", make_input("words", words, "BYTES")).as_numpy("same").tolist()
        == words.tolist()
    )


def test_models_without_a_batch_axis(client: triton.InferenceServerClient) -> None:
    """Also with an input and an output that are scalars."""
    x, k = np.array([1, 2, 3], np.float32), np.array(2.5, np.float32)
    answer = infer(client, "scaled", make_input("x", x, "FP32"), make_input("k", k, "FP32"))
    np.testing.assert_allclose(answer.as_numpy("y"), [2.5, 5, 7.5])
    assert (answer.as_numpy("again").shape, float(answer.as_numpy("again"))) == ((), 2.5)


def test_no_rows(client: triton.InferenceServerClient) -> None:
    """A batch of none is answered with none."""
    assert infer(client, "scores", make_input("x", ROWS[:0], "FP32")).as_numpy("y").shape == (0, 3)


def test_classification(client: triton.InferenceServerClient) -> None:
    """Values with their classes, the largest first."""
    outputs = [triton.InferRequestedOutput("y", class_count=2)]
    answer = infer(client, "scores", make_input("x", ROWS[1:], "FP32"), outputs=outputs)
    assert answer.as_numpy("y").tolist() == [[b"1.000000:0", b"1.000000:1"]]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(client: triton.InferenceServerClient, algorithm: str) -> None:
    """By the compression that gRPC itself has."""
    answer = infer(client, "scores", make_input("x", ROWS, "FP32"), compression_algorithm=algorithm)
    np.testing.assert_allclose(answer.as_numpy("y"), SCORES)


def test_typed_contents_are_answered_with_typed_contents(served: Served) -> None:
    """As clients do that know nothing of raw contents."""
    request = service_pb2.ModelInferRequest(model_name="pair", id="7")
    a = request.inputs.add(name="a", datatype="FP32", shape=[1, 2])
    a.contents.fp32_contents.extend([1.5, 2])
    b = request.inputs.add(name="b", datatype="INT64", shape=[1, 3])
    b.contents.int64_contents.extend([1, -2, 2**40])
    with grpc.insecure_channel(served.address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(request, metadata=tuple(KEY.items()), timeout=PATIENCE_S)
    assert answer.id == "7"
    assert not answer.raw_output_contents
    sums, twice = answer.outputs
    assert list(sums.contents.fp32_contents) == [3.5]
    assert list(twice.contents.int64_contents) == [2, -4, 2**41]


async def _infers_side_by_side(address: str) -> list[Any]:
    async with triton_aio.InferenceServerClient(address) as client:
        assert await client.is_server_ready()
        infers = (
            client.infer("scores", [make_input("x", ROWS * factor, "FP32", of=triton_aio)], headers=KEY)
            for factor in range(8)
        )
        return [answer.as_numpy("y") for answer in await asyncio.gather(*infers)]


def test_the_asynchronous_client(served: Served) -> None:
    """`tritonclient.grpc.aio`, with requests side by side."""
    for factor, scores in enumerate(asyncio.run(_infers_side_by_side(served.address))):
        np.testing.assert_allclose(scores, SCORES * factor)


def test_a_stream(served: Served) -> None:
    """Answers in order; an error among them ends nothing."""
    replies: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(served.address) as client:
        client.start_stream(lambda result, error: replies.put((result, error)), headers=KEY)
        for number in range(5):
            model = "unknown" if number == 2 else "scores"
            client.async_stream_infer(
                model,
                [make_input("x", ROWS * number, "FP32")],
                request_id=str(number),
                enable_empty_final_response=True,
            )
        seen = [replies.get(timeout=PATIENCE_S) for _ in range(5)]
        client.stop_stream()
    results, failures = zip(*seen, strict=True)
    assert "Request for unknown model: 'unknown' is not found" in str(failures[2])
    assert not any(failures[:2] + failures[3:])
    for number in (0, 1, 3, 4):
        assert results[number].get_response().id == str(number)
        np.testing.assert_allclose(results[number].as_numpy("y"), SCORES * number)
        assert results[number].get_response().parameters["triton_final_response"].bool_param


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown model": ({"model": "none"}, "NOT_FOUND", "Request for unknown model: 'none' is not found"),
    "unknown version": ({"model_version": "9"}, "NOT_FOUND", "'scores' version 9 is not found"),
    "no key": ({"headers": {}}, "UNAUTHENTICATED", "A valid key is needed"),
    "empty value": ({"headers": {"authorization": ""}}, "UNAUTHENTICATED", "A valid key is needed"),
    "empty key": ({"headers": {"authorization": "Bearer "}}, "UNAUTHENTICATED", "A valid key is needed"),
    "wrong key": ({"headers": {"authorization": "Bearer no"}}, "UNAUTHENTICATED", "A valid key is needed"),
    "script": ({"model": "script"}, "INVALID_ARGUMENT", "is an entry script that takes whole bodies"),
    "shape": ({"array": ROWS[:, :3]}, "INVALID_ARGUMENT", "Expected [-1,4], got [2,3]"),
    "too large": ({"array": np.zeros((70000, 4), np.float32)}, "RESOURCE_EXHAUSTED", "larger than max"),
    "half precision": (
        {"array": ROWS.astype(np.float16), "datatype": "FP16"},
        "INVALID_ARGUMENT",
        "inference input 'x' data-type is 'FP16', but model 'scores' expects 'FP32'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_request_keeps_its_connection(client: triton.InferenceServerClient, case: str) -> None:
    """An invalid request gets its status and the protocol's words; the connection goes on."""
    options, status, text = REFUSED[case]
    options = {"model": "scores", "array": ROWS, "datatype": "FP32", **options}
    made = make_input("x", options.pop("array"), options.pop("datatype"))
    with pytest.raises(InferenceServerException) as error:
        infer(client, options.pop("model"), made, **options)
    assert error.value.status() == f"StatusCode.{status}"
    assert text in error.value.message()
    assert client.is_server_live()


def test_a_lost_caller_frees_its_rows(served: Served, client: triton.InferenceServerClient) -> None:
    """A row that waits behind a busy device when the caller's deadline passes is not run."""
    served.gate.reset()
    rows = np.array([[HOLD, 0, 0, 0]], np.float32)
    name = served_input(client)
    first: queue.Queue[Any] = queue.Queue()
    client.async_infer(
        "batched",
        [make_input(name, rows, "FP32")],
        lambda result, error: first.put((result, error)),
        headers=KEY,
    )
    wait_until(lambda: served.gate.entered, "the script has the first row")

    requests = 0

    def count_given_up() -> float:
        statuses = ("499", "504")
        return sum(
            served.server.metric("stoker_requests_total", model="batched", status=status)
            for status in statuses
        )

    def has_given_up() -> bool:
        nonlocal requests
        requests += 1
        # A request whose deadline passes before it arrives is not counted; on both sides it passes at once.
        with pytest.raises(InferenceServerException) as error:
            infer(client, "batched", make_input(name, rows, "FP32"), client_timeout=0.3)
        assert error.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        return count_given_up() > 0

    wait_until(has_given_up, "a request is counted as given up")
    assert count_given_up() <= requests
    served.gate.open()
    result, error_of_first = first.get(timeout=PATIENCE_S)
    assert error_of_first is None
    assert result.as_numpy(result.get_response().outputs[0].name).tolist() == (rows * 3).tolist()


def test_the_repository(client: triton.InferenceServerClient, admin: dict[str, str]) -> None:
    """A model is unloaded, and loaded again, with the admin key."""
    states = {model.name: model.state for model in client.get_model_repository_index(headers=KEY).models}
    assert states.items() >= {"texts": "READY", "batched": "READY"}.items()
    with pytest.raises(InferenceServerException, match="needs the admin key"):
        client.unload_model("texts", headers=KEY)
    client.unload_model("texts", headers=admin)
    assert not client.is_model_ready("texts")
    with pytest.raises(InferenceServerException, match="'texts' is not found"):
        infer(client, "texts", make_input("words", np.array([b"a"], object), "BYTES"))
    client.load_model("texts", headers=admin)
    answer = infer(client, "texts", make_input("words", np.array([b"a"], object), "BYTES"))
    assert answer.as_numpy("same").tolist() == [b"a"]


def test_log_settings_of_all_processes_can_be_changed(
    served: Served, client: triton.InferenceServerClient, admin: dict[str, str]
) -> None:
    """Both clients of NVIDIA change the log of every frontend and script with the admin key."""

    def json_lines() -> list[dict[str, Any]]:
        lines = (line for line in served.server.output().splitlines() if line.startswith("{"))
        return [record for record in map(json.loads, lines) if record["process"] == "device script"]

    with triton_http.InferenceServerClient(f"127.0.0.1:{served.server.port}") as over_http:
        first = over_http.get_log_settings(headers=dict(KEY))
        with pytest.raises(InferenceServerException, match="needs the admin key"):
            over_http.update_log_settings({"log_warning": False}, headers=dict(KEY))
        described = client.update_log_settings({"log_format": "json", "log_warning": False}, headers=admin)
        assert described.settings["log_format"].string_param == "json"
        assert over_http.get_log_settings(headers=dict(KEY)) == {
            **first,
            "log_format": "json",
            "log_warning": False,
        }
        with served.server.connect() as connection:
            path, body = "/api/v1/service/script/score", b'{"tell": "raise"}'

            def described_as_json() -> list[dict[str, Any]]:
                # The script's process hears of it later than who asked for it: this may be told as before.
                assert connection.ask(scoring(path, PRIMARY, body)).status == 500
                return json_lines()

            wait_until(described_as_json, "the script's process logs as JSON")
        changed = over_http.update_log_settings(
            {"log_format": "default", "log_warning": True}, headers=dict(admin)
        )
        assert changed == first
        assert client.get_log_settings(headers=KEY).settings["log_warning"].bool_param


def test_trace_settings_without_a_receiver_cannot_be_changed(
    served: Served, client: triton.InferenceServerClient, admin: dict[str, str]
) -> None:
    """The settings can be read, of all models and of one; the refusal says how to start the server."""
    wanted, off = {"trace_level": ["TIMESTAMPS"], "trace_rate": "10"}, ["OFF"]
    assert list(client.get_trace_settings(headers=KEY).settings["trace_level"].value) == off
    with pytest.raises(InferenceServerException, match="start the server with --otlp-endpoint"):
        client.update_trace_settings("scores", wanted, headers=admin)
    with triton_http.InferenceServerClient(f"127.0.0.1:{served.server.port}") as over_http:
        assert over_http.get_trace_settings("scores", headers=dict(KEY))["trace_level"] == off
        with pytest.raises(InferenceServerException, match="start the server with --otlp-endpoint"):
            over_http.update_trace_settings(settings=wanted, headers=dict(admin))


def served_input(client: triton.InferenceServerClient) -> str:
    """The name of the batched script's input."""
    name: str = client.get_model_metadata("batched", headers=KEY).inputs[0].name
    return name


def test_frontends_load_grpc_only_where_it_is_served(served: Served, tmp_path: Path) -> None:
    """It has a price in memory."""

    def mapped(server: LiveServer) -> list[bool]:
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in server.frontend_pids()]
        return ["google/_upb" in text for text in maps]

    assert mapped(served.server) == [True, True]
    with LiveServer(tmp_path, write_doubler(tmp_path / "doubler.onnx"), "--frontends", "1") as plain:
        assert mapped(plain) == [False]


def test_the_start_fails_where_the_port_is_taken(served: Served, tmp_path: Path) -> None:
    """With the way out; SO_REUSEPORT would let both have it."""
    model = write_doubler(tmp_path / "doubler.onnx")
    ended = run_stoker(
        "serve", model, "--port", "0", "--grpc-port", str(served.grpc_port), "--workspace", tmp_path
    )
    assert ended.returncode == 2
    assert "choose another with --grpc-port" in ended.stderr


def test_tls_and_the_end_of_a_server(tmp_path: Path) -> None:
    """Over TLS, requests under way are answered while the server drains, and new ones until its port closes."""
    grpc_port = free_port()
    script = write_script(tmp_path / "batched", BATCHED_SCRIPT)
    gate = Gate(script.parent)
    tls = ["--grpc-tls-cert", TLS / "localhost.crt", "--grpc-tls-key", TLS / "localhost.key"]
    arguments = ["--name", "m", "--grpc-port", str(grpc_port), "--frontends", "1", "--drain-grace-s", "1"]
    with LiveServer(tmp_path, script, *arguments, *tls) as server:
        assert f"127.0.0.1:{grpc_port} with TLS" in server.output()
        with triton.InferenceServerClient(
            f"localhost:{grpc_port}", ssl=True, root_certificates=str(TLS / "localhost.crt")
        ) as client:
            name = client.get_model_metadata("m", headers=KEY).inputs[0].name
            held: queue.Queue[tuple[Any, Any]] = queue.Queue()
            row = np.array([[HOLD, 0, 0, 0]], np.float32)
            client.async_infer(
                "m",
                [make_input(name, row, "FP32")],
                lambda result, error: held.put((result, error)),
                headers=KEY,
            )
            wait_until(lambda: gate.entered, "the script has the row")
            server.signal(signal.SIGTERM)
            wait_until(lambda: not client.is_server_ready(), "readiness is off")
            assert client.is_server_live()
            wait_until(lambda: "ready" not in _answers(grpc_port), "the port is closed")
            gate.open()
            result, error = held.get(timeout=PATIENCE_S)
            assert error is None
            assert result.as_numpy(result.get_response().outputs[0].name).tolist() == (row * 3).tolist()
        assert server.wait() == 0
        assert "Traceback" not in server.output()


def _answers(port: int) -> str:
    """Return the answer that a new client of the port gets."""
    credentials = grpc.ssl_channel_credentials((TLS / "localhost.crt").read_bytes())
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            return f"ready {stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=PATIENCE_S).ready}"
        except grpc.RpcError as error:
            return str(error.code())


def test_kept_answers_are_the_same_bytes_by_all_protocols(
    served: Served, client: triton.InferenceServerClient
) -> None:
    """Each protocol writes a kept answer as it writes a fresh one, and one of them keeps it for the others."""
    data = ROWS.tolist()
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 4]}
    as_json = json.dumps({"inputs": [tensor | {"data": data}]}).encode()
    head = json.dumps(
        {
            "inputs": [tensor | {"parameters": {"binary_data_size": ROWS.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    binary = [
        ("Inference-Header-Content-Length", str(len(head))),
        ("Content-Type", "application/octet-stream"),
    ]
    npy = io.BytesIO()
    np.save(npy, ROWS)
    requests: list[tuple[str, bytes, list[tuple[str, str]]]] = [
        ("/api/v1/service/{}/score", rows_body(*data), []),
        ("/api/v1/service/{}/score", npy.getvalue(), [("Content-Type", "application/x-npy")]),
        ("/v2/models/{}/infer", as_json, []),
        ("/v2/models/{}/infer", head + ROWS.tobytes(), binary),
        ("/v1/models/{}:predict", json.dumps({"instances": data}).encode(), []),
    ]

    def count(name: str) -> float:
        return served.server.metric(f"stoker_cache_{name}_total", model="kept")

    with served.server.connect() as connection:
        for path, body, headers in requests:
            fresh = connection.ask(scoring(path.format("scores"), PRIMARY, body, headers))
            assert fresh.status == 200
            for _ in range(2):
                answer = connection.ask(scoring(path.format("kept"), PRIMARY, body, headers))
                assert answer.body == fresh.body.replace(b'"scores"', b'"kept"')
        assert (count("hits"), count("misses")) == (2 * len(requests) - 1, 1)
        one = connection.ask(scoring("/api/v1/service/keeping/score", PRIMARY, b'{"data": [[1, 2]]}'))
        again = connection.ask(scoring("/api/v1/service/keeping/score", PRIMARY, b'{"data": [[1, 2]]}'))
        assert (one.status, one.body) == (again.status, again.body)
        assert served.server.metric("stoker_cache_hits_total", model="keeping") == 1
    fresh_rpc = infer(client, "scores", make_input("x", ROWS, "FP32"), request_id="r")
    for _ in range(2):
        kept = infer(client, "kept", make_input("x", ROWS, "FP32"), request_id="r")
        assert kept.get_response().raw_output_contents == fresh_rpc.get_response().raw_output_contents
    described = client.get_inference_statistics("kept", headers=KEY).model_stats[0].inference_stats
    assert (described.cache_hit.count, described.cache_miss.count) == (count("hits"), count("misses"))
    assert count("hits") >= 2 * len(requests)
    assert described.cache_hit.ns > 0
