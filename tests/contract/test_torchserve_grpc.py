"""TorchServe's services over gRPC, by a client that is compiled here from the published messages."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc_tools
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc
from tests.contract.in_process import KEY, InProcessGrpcServer, script
from tests.live_server import wait_until
from tests.patience import PATIENCE_S
from tests.puppet_supervisor import PuppetSupervisor, with_admin_key
from tests.puppets import PuppetRuntime

from stoker.control.frontend_messages import AskDefault, AskLoad, AskUnload
from stoker.settings.choices import Adjustments
from stoker.settings.versions import VersionPolicy
from stoker_azure.aml_request import AMLRequest
from stoker_azure.aml_response import AMLResponse

ADMIN = "the-admin-key-of-the-tests"
PROTO = """
syntax = "proto3";
package org.pytorch.serve.grpc.inference;
import "google/protobuf/empty.proto";
message PredictionsRequest {
  string model_name = 1;
  string model_version = 2;
  map<string, bytes> input = 3;
  optional string sequenceId = 4;
}
message PredictionResponse { bytes prediction = 1; optional string sequenceId = 2; }
message TorchServeHealthResponse { string health = 1; }
service InferenceAPIsService {
  rpc Ping(google.protobuf.Empty) returns (TorchServeHealthResponse) {}
  rpc Predictions(PredictionsRequest) returns (PredictionResponse) {}
  rpc StreamPredictions(PredictionsRequest) returns (stream PredictionResponse) {}
  rpc StreamPredictions2(stream PredictionsRequest) returns (stream PredictionResponse) {}
}
"""
MANAGEMENT = """
syntax = "proto3";
package org.pytorch.serve.grpc.management;
message ManagementResponse { string msg = 1; }
message DescribeModelRequest { string model_name = 1; string model_version = 2; bool customized = 3; }
message ListModelsRequest { int32 limit = 1; int32 next_page_token = 2; }
message RegisterModelRequest {
  int32 batch_size = 1;
  string handler = 2;
  int32 initial_workers = 3;
  int32 max_batch_delay = 4;
  string model_name = 5;
  int32 response_timeout = 6;
  string runtime = 7;
  bool synchronous = 8;
  string url = 9;
  bool s3_sse_kms = 10;
}
message ScaleWorkerRequest {
  string model_name = 1;
  string model_version = 2;
  int32 max_worker = 3;
  int32 min_worker = 4;
  int32 number_gpu = 5;
  bool synchronous = 6;
  int32 timeout = 7;
}
message SetDefaultRequest { string model_name = 1; string model_version = 2; }
message UnregisterModelRequest { string model_name = 1; string model_version = 2; }
service ManagementAPIsService {
  rpc DescribeModel(DescribeModelRequest) returns (ManagementResponse) {}
  rpc ListModels(ListModelsRequest) returns (ManagementResponse) {}
  rpc RegisterModel(RegisterModelRequest) returns (ManagementResponse) {}
  rpc ScaleWorker(ScaleWorkerRequest) returns (ManagementResponse) {}
  rpc SetDefault(SetDefaultRequest) returns (ManagementResponse) {}
  rpc UnregisterModel(UnregisterModelRequest) returns (ManagementResponse) {}
}
"""


class Client(NamedTuple):
    """The methods of both services on a channel."""

    channel: grpc.Channel
    methods: dict[str, Any]

    def call(self, method: str, key: str = KEY, **fields: Any) -> Any:
        """Call a method; the answers of one that streams are a list."""
        described = self.methods[method]
        request = message_factory.GetMessageClass(described.input_type)(**fields)
        response = message_factory.GetMessageClass(described.output_type)
        kind = self.channel.unary_stream if described.server_streaming else self.channel.unary_unary
        path = f"/{described.containing_service.full_name}/{method}"
        call = kind(path, lambda given: given.SerializeToString(), response.FromString)
        metadata = (("authorization", f"Bearer {key}"),) if key else ()
        answer = call(request, metadata=metadata, timeout=PATIENCE_S)
        return list(answer) if described.server_streaming else answer

    def refused(self, method: str, key: str = KEY, **fields: Any) -> tuple[grpc.StatusCode, str]:
        """How a call ends that has to fail."""
        with pytest.raises(grpc.RpcError) as refusal:
            self.call(method, key, **fields)
        return refusal.value.code(), refusal.value.details()


def echo(request: AMLRequest) -> AMLResponse:
    kind = request.headers.get("Content-Type", "").partition(";")[0]
    return AMLResponse(
        kind.encode() + b"|" + request.get_data(), 418 if b"tea" in request.get_data() else 200
    )


BEGUN, GATE = threading.Event(), threading.Event()


def wait(raw_data: str) -> str:
    BEGUN.set()
    GATE.wait(PATIENCE_S)
    return raw_data


def count(raw_data: str) -> Iterator[int]:
    for number in range(int(raw_data)):
        if number == 3:
            raise ValueError("three")
        yield number


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessGrpcServer]:
    """A model that doubles rows, a script that takes requests, and one that yields."""
    runtimes = {
        "doubler": PuppetRuntime(),
        "echo": script(echo, raw=True),
        "count": script(count, forks=True),
        "wait": script(wait),
    }
    with InProcessGrpcServer(runtimes, key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: InProcessGrpcServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client from the published messages."""
    folder = tmp_path_factory.mktemp("protos")
    (folder / "inference.proto").write_text(PROTO)
    (folder / "management.proto").write_text(MANAGEMENT)
    include = Path(grpc_tools.__file__).parent / "_proto"
    compiled = folder / "compiled"
    arguments = [
        "protoc",
        f"-I{folder}",
        f"-I{include}",
        "--include_imports",
        f"--descriptor_set_out={compiled}",
    ]
    assert protoc.main([*arguments, "inference.proto", "management.proto"]) == 0
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file:
        pool.Add(file)
    package = "org.pytorch.serve.grpc"
    services = ("inference.InferenceAPIsService", "management.ManagementAPIsService")
    methods = {
        method.name: method
        for name in services
        for method in pool.FindServiceByName(f"{package}.{name}").methods
    }
    with grpc.insecure_channel(server.address) as channel:
        yield Client(channel, methods)


@pytest.mark.parametrize("method", ["Predictions", "StreamPredictions"])
@pytest.mark.parametrize("version", ["", "1", "1.0"])
def test_predictions(client: Client, method: str, version: str) -> None:
    """The input is the body of the HTTP request, under any name; the answer is the same."""
    for name, body, answer in (
        ("data", b"[[1, 2]]", [[2, 4]]),
        ("body", b'{"instances": [[1, 2]]}', {"predictions": [[2, 4]]}),
    ):
        given = client.call(method, model_name="doubler", model_version=version, input={name: body})
        (answered,) = given if isinstance(given, list) else [given]
        assert json.loads(answered.prediction) == answer


def test_scripts_get_a_form_or_a_body(client: Client) -> None:
    """The fields of a row under their names; `body` alone is the body."""
    plain = client.call("Predictions", model_name="echo", input={"body": b"\x89PNG"})
    assert plain.prediction == b"|\x89PNG"
    form = client.call("Predictions", model_name="echo", input={"data": b"\x89PNG", "size": b"3"})
    kind, _, body = form.prediction.partition(b"|")
    assert kind == b"multipart/form-data"
    for name, content in (("data", b"\x89PNG"), ("size", b"3")):
        assert f'form-data; name="{name}"\r\n\r\n'.encode() + content + b"\r\n" in body
    assert client.refused("Predictions", model_name="echo", input={"body": b"tea"})[1] == "|tea"


def test_pieces(client: Client) -> None:
    """One message a piece; an error behind them ends the call, and a call for one answer is refused."""
    answers = client.call("StreamPredictions", model_name="count", input={"data": b"2"})
    assert [answer.prediction for answer in answers] == [b"0", b"1"]
    code, _ = client.refused("StreamPredictions", model_name="count", input={"data": b"9"})
    assert code == grpc.StatusCode.INTERNAL
    code, text = client.refused("Predictions", model_name="count", input={"data": b"2"})
    assert (code, "call StreamPredictions" in text) == (grpc.StatusCode.UNIMPLEMENTED, True)


@pytest.mark.parametrize(
    ("fields", "code", "part"),
    [
        ({"model_name": "nobody", "input": {"data": b"[]"}}, "NOT_FOUND", "Model not found: nobody"),
        (
            {"model_name": "doubler", "model_version": "2", "input": {"data": b"[]"}},
            "NOT_FOUND",
            "Model version: 2 does not exist for model: doubler",
        ),
        ({"model_name": "doubler"}, "INVALID_ARGUMENT", "has no input"),
        ({"model_name": "doubler", "input": {"a": b"", "b": b""}}, "INVALID_ARGUMENT", "takes one input"),
        ({"model_name": "doubler", "input": {"data": b"[[1]]"}}, "INVALID_ARGUMENT", "row 0 has 1"),
        ({"model_name": "echo", "input": {'a"': b"", "b": b""}}, "INVALID_ARGUMENT", "name of an input"),
        ({"model_name": "echo", "input": {"data": b"1" * (1 << 20)}}, "RESOURCE_EXHAUSTED", "larger than"),
    ],
)
def test_refused(client: Client, fields: dict[str, Any], code: str, part: str) -> None:
    """With gRPC's status, and the sentence of HTTP."""
    status, text = client.refused("Predictions", **fields)
    assert (status.name, part in text) == (code, True), text


def test_keys(client: Client) -> None:
    """Predictions need the model's, also where the message is long; what there is not is UNIMPLEMENTED."""
    for content in (b"[]", b"1" * (1 << 19)):
        for key in ("", KEY + "-wrong"):
            code, _ = client.refused("Predictions", key, model_name="doubler", input={"data": content})
            assert code == grpc.StatusCode.UNAUTHENTICATED
    assert client.refused("StreamPredictions2")[0] == grpc.StatusCode.UNIMPLEMENTED


def test_an_abandoned_call_is_counted(server: InProcessGrpcServer, client: Client) -> None:
    """A caller who cancels while the script runs gets no answer, and its request counts as such."""
    described = client.methods["Predictions"]
    request = message_factory.GetMessageClass(described.input_type)(model_name="wait", input={"data": b"1"})
    path = f"/{described.containing_service.full_name}/Predictions"
    call = client.channel.unary_unary(path, lambda given: given.SerializeToString(), bytes)
    answer = call.future(request, metadata=(("authorization", f"Bearer {KEY}"),))
    assert BEGUN.wait(PATIENCE_S)
    answer.cancel()
    slot = server.gateway.directory.models["wait"].versions["1"].status.slot
    try:
        wait_until(lambda: server.memory.totals().model(slot).requests()[499] == 1, "it is counted")
    finally:
        GATE.set()


def test_ping(server: InProcessGrpcServer, client: Client) -> None:
    """Healthy without a key; UNAVAILABLE where a model cannot score."""
    assert json.loads(client.call("Ping", key="").health) == {"status": "Healthy"}
    service = server.gateway.directory.services["doubler"]
    exchanges = list(service.exchanges)
    service.exchanges.clear()
    try:
        assert client.refused("Ping", key="")[0] == grpc.StatusCode.UNAVAILABLE
    finally:
        service.exchanges.extend(exchanges)


def test_models_are_managed(server: InProcessGrpcServer, client: Client) -> None:
    """As over HTTP, with the admin key."""
    supervisor = PuppetSupervisor(server.gateway, with_admin_key(ADMIN))
    changes = [
        (
            "RegisterModel",
            {"url": "doubler.mar", "batch_size": 4, "initial_workers": 1, "synchronous": True},
            AskLoad(0, "doubler", adjustments=Adjustments(4, replicas=1)),
            'Model "doubler" Version: 1 registered with 1 initial workers',
        ),
        (
            "ScaleWorker",
            {"model_name": "doubler", "min_worker": 2},
            AskLoad(1, "doubler", policy=VersionPolicy.of((1,)), adjustments=Adjustments(replicas=2)),
            "Workers scaled to 2 for model: doubler",
        ),
        (
            "SetDefault",
            {"model_name": "doubler", "model_version": "1.0"},
            AskDefault(2, "doubler", 1),
            'Default version successfully updated for model "doubler" to "1"',
        ),
        (
            "UnregisterModel",
            {"model_name": "doubler"},
            AskUnload(3, "doubler"),
            'Model "doubler" unregistered',
        ),
    ]
    for method, fields, _, message in changes:
        assert client.refused(method, KEY, **fields)[0] == grpc.StatusCode.UNAUTHENTICATED
        assert client.call(method, ADMIN, **fields).msg == message
    assert supervisor.requests == [question for *_, question, _ in changes]
    code, text = client.refused("RegisterModel", ADMIN, url="doubler.mar", handler="x")
    assert (code.name, "the archive names its handler" in text) == ("INVALID_ARGUMENT", True)
    listed = json.loads(client.call("ListModels", limit=2).msg)
    assert [model["modelName"] for model in listed["models"]] == ["count", "doubler"]
    (described,) = json.loads(client.call("DescribeModel", model_name="doubler").msg)
    assert (described["modelVersion"], described["minWorkers"]) == ("1", 1)
