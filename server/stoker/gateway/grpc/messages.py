"""The messages of the gRPC services, made from the compiled `.proto` files beside this one.

They live in a descriptor pool of their own. In the default pool of a process the package `inference` can be described
once, and other packages (tritonclient, KServe) bring descriptions of it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, empty_pb2, message_factory, wrappers_pb2

SERVICE: Final = "inference.GRPCInferenceService"
"""The full name of the service."""

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"
SERVING: Final = "tensorflow.serving"
"""The package of TensorFlow Serving's services."""

TORCHSERVE: Final = "org.pytorch.serve.grpc"
INFERENCE_APIS: Final = f"{TORCHSERVE}.inference.InferenceAPIsService"
MANAGEMENT_APIS: Final = f"{TORCHSERVE}.management.ManagementAPIsService"
"""The full names of TorchServe's services."""

_COMPILED: Final = (
    "open_inference.binpb",
    "health.binpb",
    "reflection.binpb",
    "tensorflow_serving.binpb",
    "torchserve.binpb",
    "torchserve_management.binpb",
)


def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for known in (any_pb2, empty_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for name in _COMPILED:
        compiled = files(__package__).joinpath(name).read_bytes()
        for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
            pool.Add(file)
    return pool


POOL: Final = _pool()
"""Describes the services, for reflection."""

METHODS: Final[dict[str, Any]] = dict(POOL.FindServiceByName(SERVICE).methods_by_name)
"""The descriptors of its methods by name."""


def message(name: str, package: str = "inference") -> Any:
    """Return the class of a message of a package."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{package}.{name}"))


ModelInferRequest: Final = message("ModelInferRequest")
ModelInferResponse: Final = message("ModelInferResponse")
ModelStreamInferResponse: Final = message("ModelStreamInferResponse")

HealthCheckRequest: Final = message("HealthCheckRequest", "grpc.health.v1")
HealthCheckResponse: Final = message("HealthCheckResponse", "grpc.health.v1")
ServerReflectionRequest: Final = message("ServerReflectionRequest", "grpc.reflection.v1alpha")
ServerReflectionResponse: Final = message("ServerReflectionResponse", "grpc.reflection.v1alpha")
