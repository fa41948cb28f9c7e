"""TensorFlow Serving's services over gRPC, by a plain channel and the published paths, as its users call them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from msgspec.structs import replace
from tests.contract.in_process import InProcessGrpcServer, script
from tests.patience import PATIENCE_S

from stoker.deployment import Deployment
from stoker.gateway.grpc.messages import SERVING, message
from stoker.gateway.grpc.tensorflow_serving import tensor_bytes
from stoker.runtimes.packed import PackedRuntime
from stoker.runtimes.signatures import SignaturesRuntime
from stoker.tensors import ModelTensors, NamedSignature, TensorInfo
from stoker.wire.tfs_examples import entry_of, example_of

PREDICTION = f"/{SERVING}.PredictionService/"
STATUS = f"/{SERVING}.ModelService/GetModelStatus"
KEY = (("authorization", f"Bearer {'k' * 43}"),)
RESPONSES = {
    "Predict": "PredictResponse",
    "Classify": "ClassificationResponse",
    "Regress": "RegressionResponse",
    "GetModelMetadata": "GetModelMetadataResponse",
}
ROWS = np.array([[1, 2], [3, 4]], np.float32)
Example = message("Example", SERVING)


def signatures() -> SignaturesRuntime:
    """A model of three signatures: tensors, and examples that are judged or weighed."""
    deployment = Deployment("model", 1, "tensorflow", Path("model"), Path(), 16, 1 << 20)
    rows, examples = TensorInfo("x", "float32", (-1, 2)), TensorInfo("inputs", "string", (-1,))

    def embed(feeds: Any) -> dict[str, np.ndarray]:
        return {"more": feeds["x"] + 1, "less": feeds["x"].astype(np.int64) - 1}

    def judge(feeds: Any) -> dict[str, np.ndarray]:
        classes = np.array([[b"short", b"long"]] * len(feeds["inputs"]), object)
        scores = np.array([[0.5, _sum(example)] for example in feeds["inputs"]], np.float32)
        return {"classes": classes, "scores": scores}

    def weigh(feeds: Any) -> dict[str, np.ndarray]:
        return {"outputs": np.array([_sum(example) for example in feeds["inputs"]], np.float32)}

    outputs = {
        "embed": (TensorInfo("more", "float32", (-1, 2)), TensorInfo("less", "int64", (-1, 2))),
        "judge": (TensorInfo("classes", "string", (-1, 2)), TensorInfo("scores", "float32", (-1, 2))),
        "weigh": (TensorInfo("outputs", "float32", (-1,)),),
    }
    named = [
        NamedSignature("embed", ModelTensors((rows,), outputs["embed"], True)),
        NamedSignature("judge", ModelTensors((examples,), outputs["judge"], True), "classify"),
        NamedSignature("weigh", ModelTensors((examples,), outputs["weigh"], True), "regress"),
    ]
    runs = {"embed": embed, "judge": judge, "weigh": weigh}
    return SignaturesRuntime(
        named, {one.name: PackedRuntime(runs[one.name], one.tensors, deployment) for one in named}
    )


def _sum(example: bytes) -> float:
    """Of all numbers of an example."""
    features = Example.FromString(example).features.feature.values()
    return float(sum(sum(feature.int64_list.value) for feature in features))


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessGrpcServer]:
    """The model of `signatures`."""
    with InProcessGrpcServer(signatures()) as running:
        yield running


def call(server: InProcessGrpcServer, path: str, request: Any, response: Any) -> Any:
    """Call a method by its path."""
    with grpc.insecure_channel(server.address) as channel:
        method = channel.unary_unary(path, lambda given: given.SerializeToString(), response.FromString)
        return method(request, metadata=KEY, timeout=PATIENCE_S)


def ask(server: InProcessGrpcServer, method: str, request: Any) -> Any:
    """Call a method of the PredictionService."""
    return call(server, PREDICTION + method, request, message(RESPONSES[method], SERVING))


def refused(server: InProcessGrpcServer, method: str, request: Any) -> tuple[grpc.StatusCode, str]:
    """How a call ends that has to fail."""
    with pytest.raises(grpc.RpcError) as refusal:
        ask(server, method, request)
    return refusal.value.code(), refusal.value.details()


def predict(name: str = "model", wanted: tuple[str, ...] = (), **spec: Any) -> Any:
    """A `PredictRequest` with two rows."""
    request = message("PredictRequest", SERVING)(model_spec={"name": name, **spec}, output_filter=wanted)
    request.inputs["x"].MergeFromString(tensor_bytes(ROWS))
    return request


def examples(kind: str, name: str, signature: str, *numbers: int, context: int | None = None) -> Any:
    """A request with examples of one number each, and a context of one."""
    request = message(f"{kind}Request", SERVING)(model_spec={"name": name, "signature_name": signature})
    given = request.input.example_list if context is None else request.input.example_list_with_context
    for number in numbers:
        given.examples.add().MergeFromString(example_of([entry_of("a", [number])]))
    if context is not None:
        given.context.MergeFromString(example_of([entry_of("b", [context])]))
    return request


def test_predict(server: InProcessGrpcServer) -> None:
    """The answer has all outputs, element by element, and the model's name and version."""
    for spec in ({}, {"version": {"value": 1}}, {"signature_name": "embed"}):
        answer = ask(server, "Predict", predict(**spec))
        assert answer.outputs["more"].float_val == [2, 3, 4, 5]
        assert answer.outputs["less"].int64_val == [0, 1, 2, 3]
        assert [dim.size for dim in answer.outputs["less"].tensor_shape.dim] == [2, 2]
        assert answer.model_spec.name == "model"
        assert answer.model_spec.version.value == 1
        assert answer.model_spec.signature_name == "embed"


def test_a_version_is_called_by_its_label(server: InProcessGrpcServer) -> None:
    """The answer has its number."""
    model = server.gateway.directory.models["model"]
    server.gateway.route("model", replace(model, labels={"stable": "1"}))
    try:
        answer = ask(server, "Predict", predict(version_label="stable"))
        assert answer.outputs["more"].float_val == [2, 3, 4, 5]
        assert answer.model_spec.version.value == 1
    finally:
        server.gateway.route("model", model)


def test_outputs_are_filtered(server: InProcessGrpcServer) -> None:
    """Those that are named; a name that is none is refused."""
    assert list(ask(server, "Predict", predict(wanted=("less",))).outputs) == ["less"]
    for wanted in (("other",), ("less", "less")):
        code, message_text = refused(server, "Predict", predict(wanted=wanted))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "output_filter" in message_text


def test_classify_and_regress(server: InProcessGrpcServer) -> None:
    """Examples as they are, and with the features of a context."""
    judged = ask(server, "Classify", examples("Classification", "model", "judge", 3, 4))
    assert [[(one.label, one.score) for one in each.classes] for each in judged.result.classifications] == [
        [("short", 0.5), ("long", 3)],
        [("short", 0.5), ("long", 4)],
    ]
    weighed = ask(server, "Regress", examples("Regression", "model", "weigh", 3, 4, context=10))
    assert [one.value for one in weighed.result.regressions] == [13, 14]
    assert weighed.model_spec.signature_name == "weigh"


@pytest.mark.parametrize(
    ("method", "request_", "code", "part"),
    [
        ("Predict", predict("other"), "NOT_FOUND", "unknown model"),
        ("Predict", predict(version={"value": 9}), "NOT_FOUND", "version 9"),
        ("Predict", predict(version_label="x"), "INVALID_ARGUMENT", "Unrecognized servable version label: x"),
        ("Predict", predict(signature_name="x"), "INVALID_ARGUMENT", "served here: embed, judge, weigh"),
        ("Predict", predict(signature_name="judge"), "INVALID_ARGUMENT", "missing: inputs"),
        ("Classify", examples("Classification", "model", "embed", 1), "INVALID_ARGUMENT", "cannot classify"),
        ("Regress", examples("Regression", "model", "judge", 1), "INVALID_ARGUMENT", "it is for classify"),
        ("Regress", examples("Regression", "model", "weigh"), "INVALID_ARGUMENT", "Input is empty"),
    ],
)
def test_request_that_does_not_fit_gets_the_grpc_status(
    server: InProcessGrpcServer, method: str, request_: Any, code: str, part: str
) -> None:
    """The status is TensorFlow Serving's, with a sentence."""
    status, message_text = refused(server, method, request_)
    assert status.name == code
    assert part in message_text


def test_a_context_is_not_repeated_without_end(server: InProcessGrpcServer) -> None:
    """A long one with many examples would be gigabytes."""
    request = examples("Regression", "model", "weigh", *[1] * 3000, context=1)
    request.input.example_list_with_context.context.MergeFromString(
        example_of([entry_of("long", [b"x" * 1000])])
    )
    assert refused(server, "Regress", request)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_metadata(server: InProcessGrpcServer) -> None:
    """The signatures, packed as TensorFlow Serving packs them."""
    request = message("GetModelMetadataRequest", SERVING)
    answer = ask(
        server, "GetModelMetadata", request(model_spec={"name": "model"}, metadata_field=["signature_def"])
    )
    packed = answer.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    signature_map = message("SignatureDefMap", SERVING)()
    assert packed.Unpack(signature_map)
    assert signature_map.signature_def["judge"].method_name == "tensorflow/serving/classify"
    x = signature_map.signature_def["embed"].inputs["x"]
    assert (x.name, x.dtype, [dim.size for dim in x.tensor_shape.dim]) == ("x:0", 1, [-1, 2])
    for fields in ([], ["other"]):
        status, message_text = refused(
            server, "GetModelMetadata", request(model_spec={"name": "model"}, metadata_field=fields)
        )
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert "metadata" in message_text.lower()


def test_status(server: InProcessGrpcServer) -> None:
    """The state of each version, or of one."""
    request, response = message("GetModelStatusRequest", SERVING), message("GetModelStatusResponse", SERVING)
    for spec in ({"name": "model"}, {"name": "model", "version": {"value": 1}}):
        (one,) = call(server, STATUS, request(model_spec=spec), response).model_version_status
        assert (one.version, one.state, one.status.error_code) == (1, 30, 0)
    with pytest.raises(grpc.RpcError) as refusal:
        call(server, STATUS, request(model_spec={"name": "other"}), response)
    assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


def test_scripts_of_whole_bodies_are_refused() -> None:
    """They have no tensors."""
    with InProcessGrpcServer(script(lambda raw_data: raw_data)) as running:
        status, message_text = refused(running, "Predict", predict())
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert "entry script" in message_text
