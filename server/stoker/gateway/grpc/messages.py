"""The messages of the gRPC service, made from the compiled `open_inference.proto`.

They live in a descriptor pool of their own. In the default pool of a process the package `inference` can be described
once, and other packages (tritonclient, KServe) bring descriptions of it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = [
    "METHODS",
    "POOL",
    "SERVICE",
    "ModelInferRequest",
    "ModelInferResponse",
    "ModelMetadataResponse",
    "ModelReadyResponse",
    "ModelStreamInferResponse",
    "ServerLiveResponse",
    "ServerMetadataResponse",
    "ServerReadyResponse",
    "message",
]

SERVICE: Final = "inference.GRPCInferenceService"
"""The full name of the service."""


def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    compiled = files(__package__).joinpath("open_inference.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return pool


POOL: Final = _pool()
"""Describes the service, for reflection."""

METHODS: Final[dict[str, Any]] = dict(POOL.FindServiceByName(SERVICE).methods_by_name)
"""The descriptors of its methods by name."""


def message(name: str) -> Any:
    """Return the class of a message of the package `inference`."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"inference.{name}"))


ModelInferRequest: Final = message("ModelInferRequest")
ModelInferResponse: Final = message("ModelInferResponse")
ModelMetadataResponse: Final = message("ModelMetadataResponse")
ModelReadyResponse: Final = message("ModelReadyResponse")
ModelStreamInferResponse: Final = message("ModelStreamInferResponse")
ServerLiveResponse: Final = message("ServerLiveResponse")
ServerMetadataResponse: Final = message("ServerMetadataResponse")
ServerReadyResponse: Final = message("ServerReadyResponse")
