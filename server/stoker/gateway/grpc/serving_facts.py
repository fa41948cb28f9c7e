"""What TensorFlow Serving's services say of models: their signatures, and the states of their versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import ParseDict

from stoker.echo import cut
from stoker.errors import InvalidInput
from stoker.gateway.grpc.calls import BEARER_METADATA
from stoker.gateway.grpc.messages import SERVING, message
from stoker.gateway.grpc.serving import answered_spec
from stoker.gateway.grpc.serving_requests import ModelSpec, spec_of
from stoker.gateway.protocols.metadata_access import check_metadata_access
from stoker.gateway.protocols.tfs_describing import described_signatures, described_versions, service_of

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.grpc.calls import RpcCall

__all__ = ["ServingFacts"]

_Metadata: Final = message("GetModelMetadataResponse", SERVING)
_Signatures: Final = message("SignatureDefMap", SERVING)
_Status: Final = message("GetModelStatusResponse", SERVING)
_SIGNATURES: Final = "signature_def"


class ServingFacts:
    """Answers GetModelMetadata and GetModelStatus.

    Args:
        gateway: The frontend's services.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def metadata(self, request: Any, call: RpcCall) -> Any:
        """Answer a `GetModelMetadataRequest`."""
        asked = list(request.metadata_field)
        if not asked:
            raise InvalidInput("GetModelMetadataRequest must specify at least one metadata_field")
        for name in asked:
            if name != _SIGNATURES:
                raise InvalidInput(f"Metadata field {cut(name)} is not supported")
        spec = spec_of(request.model_spec)
        service = service_of(self._gateway, spec.model_name, *_version(spec))
        check_metadata_access(self._gateway, call.authorization, (service,), sent_as=BEARER_METADATA)
        answer = _Metadata(model_spec=answered_spec(service))
        answer.metadata[_SIGNATURES].Pack(ParseDict(described_signatures(service), _Signatures()))
        return answer

    async def status(self, request: Any, call: RpcCall) -> Any:
        """Answer a `GetModelStatusRequest`; as over HTTP, no key is asked for."""
        del call
        spec = spec_of(request.model_spec)
        return ParseDict(described_versions(self._gateway, spec.model_name, *_version(spec)), _Status())


def _version(spec: ModelSpec) -> tuple[str | None, str | None]:
    """The number of the version, and else its label."""
    return spec.model_version or None, spec.label or None
