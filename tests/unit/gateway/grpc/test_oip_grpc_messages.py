"""The compiled messages of the gRPC service are those of the `.proto`, and of the published interface."""

from pathlib import Path
from typing import Any

import grpc_tools
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_tools import protoc
from tritonclient.grpc import model_config_pb2, service_pb2

from stoker.gateway.grpc import messages

FOLDER = Path(messages.__file__).parent


def described(content: bytes) -> dict[str, Any]:
    """Messages and services of a compiled file, by name."""
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(content).file
    return {part.name: part for part in (*file.message_type, *file.service)}


def fields(message: Any) -> dict[str, tuple[Any, ...]]:
    """Number, type and label of each field, with the messages and the words inside a message."""
    found = {field.name: (field.number, field.type, field.label, field.type_name) for field in message.field}
    found |= {f"{kind.name}.{word.name}": (word.number,) for kind in message.enum_type for word in kind.value}
    for nested in message.nested_type:
        found |= {f"{nested.name}.{name}": field for name, field in fields(nested).items()}
    return found


@pytest.mark.parametrize(
    "name",
    [
        "open_inference",
        "health",
        "reflection",
        "tensorflow_serving",
        "torchserve",
        "torchserve_management",
    ],
)
def test_compiled_file_is_up_to_date(name: str, tmp_path: Path) -> None:
    """Compiling the `.proto` again gives the file in the repository; its first lines say how."""
    compiled = tmp_path / "compiled"
    include = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{FOLDER}", f"-I{include}", f"--descriptor_set_out={compiled}"]
    assert protoc.main([*arguments, f"{name}.proto"]) == 0
    committed = (FOLDER / f"{name}.binpb").read_bytes()
    assert described(committed) == described(compiled.read_bytes())


def test_names_and_numbers_are_the_published_ones() -> None:
    """Every message, field and method is there in tritonclient's description too, with the same number and type."""
    published, configuration = descriptor_pb2.FileDescriptorProto(), descriptor_pb2.FileDescriptorProto()
    service_pb2.DESCRIPTOR.CopyToProto(published)
    model_config_pb2.DESCRIPTOR.CopyToProto(configuration)
    theirs = {
        message.name: fields(message) for message in (*published.message_type, *configuration.message_type)
    }
    methods = {method.name: method for method in published.service[0].method}
    parts = described((FOLDER / "open_inference.binpb").read_bytes())
    service = parts.pop("GRPCInferenceService")
    types = {word.name: word.number for word in configuration.enum_type[0].value}
    assert {
        word.name: word.number for word in messages.POOL.FindEnumTypeByName("inference.DataType").values
    } == types
    for name, message in parts.items():
        assert fields(message).items() <= theirs[name].items(), name
    for method in service.method:
        assert method == methods[method.name] or _same(method, methods[method.name]), method.name


@pytest.mark.parametrize(("name", "published"), [("health", health_pb2), ("reflection", reflection_pb2)])
def test_the_standard_services_are_the_published_ones(name: str, published: Any) -> None:
    """Every message, field and method, and no other."""
    file = descriptor_pb2.FileDescriptorProto()
    published.DESCRIPTOR.CopyToProto(file)
    parts = described((FOLDER / f"{name}.binpb").read_bytes())
    theirs = {part.name: part for part in (*file.message_type, *file.service)}
    assert parts.keys() == theirs.keys()
    for part, their in theirs.items():
        if isinstance(their, descriptor_pb2.DescriptorProto):
            assert fields(parts[part]) == fields(their)
        else:
            assert parts[part] == their


def _same(one: Any, other: Any) -> bool:
    names = ("input_type", "output_type", "client_streaming", "server_streaming")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def test_messages_of_other_packages_can_be_there_too() -> None:
    """The package `inference` is described in a pool of its own, so that tritonclient can be imported beside it."""
    ours = messages.ModelInferRequest(model_name="m", id="7")
    assert service_pb2.ModelInferRequest.FromString(ours.SerializeToString()).id == "7"
    assert type(ours) is not service_pb2.ModelInferRequest
