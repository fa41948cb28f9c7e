"""Metadata in TensorFlow Serving's form, for REST and gRPC: the version that is meant, its state, its signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stoker.echo import cut
from stoker.errors import MalformedBody, NotFound, StokerError
from stoker.gateway.protocols.infer_dialect import signatures_of

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.scoring.service import Service
    from stoker.gateway.served_models import ServedVersion
    from stoker.tensors import NamedSignature, TensorInfo

__all__ = ["DTYPES", "described_signatures", "described_versions", "service_of"]

DTYPES: Final = {
    "bool": "DT_BOOL",
    "uint8": "DT_UINT8",
    "uint16": "DT_UINT16",
    "uint32": "DT_UINT32",
    "uint64": "DT_UINT64",
    "int8": "DT_INT8",
    "int16": "DT_INT16",
    "int32": "DT_INT32",
    "int64": "DT_INT64",
    "float16": "DT_HALF",
    "float32": "DT_FLOAT",
    "float64": "DT_DOUBLE",
    "string": "DT_STRING",
}
"""TensorFlow's name of each dtype."""

_LOAD_ERRORS: Final = {
    "load_timeout": "DEADLINE_EXCEEDED",
    "unknown_model": "NOT_FOUND",
    "corrupt_model": "DATA_LOSS",
    "invalid_settings": "INVALID_ARGUMENT",
    "repository_error": "FAILED_PRECONDITION",
    "environment_unusable": "FAILED_PRECONDITION",
    "device_unavailable": "UNAVAILABLE",
}
"""TensorFlow's error code by the code of the error with which a version was not loaded; INTERNAL for all others."""


def service_of(gateway: Gateway, name: str, number: str | None, label: str | None) -> Service:
    """Find a version of a model.

    Args:
        gateway: The frontend's gateway.
        name: The model's name.
        number: The version's number; None means what the label means, or the default.
        label: A label, if no number was given.

    Raises:
        NotFound: There is no such model or version.
        MalformedBody: There is no such label.
        NotReady: The version is being loaded for the first time, or could not be loaded.
    """
    states = gateway.model_versions(name)
    if not states or (number is not None and number not in states):
        asked = f"Latest({cut(name)})" if number is None else f"Specific({cut(name)}, {cut(number)})"
        raise NotFound(f"Servable not found for request: {asked}")
    try:
        return gateway.find(name, number, label)
    except StokerError as error:
        if label is not None:
            raise MalformedBody(f"Unrecognized servable version label: {cut(label)}") from error
        raise


def described_versions(gateway: Gateway, name: str, number: str | None, label: str | None) -> dict[str, Any]:
    """Return the states of one version of a model, or of all, as the JSON of a `GetModelStatusResponse`.

    Args:
        gateway: The frontend's gateway.
        name: The model's name.
        number: The version's number.
        label: A label, if no number was given. Without either, all versions are meant.

    Raises:
        StokerError: There is no such model, version or label.
    """
    model = gateway.models.get(name)
    if model is None:
        raise NotFound(f"Could not find any versions of model {cut(name)}")
    if label is not None:
        number = service_of(gateway, name, None, label).version
    versions = model.versions
    if number is not None:
        if number not in versions:
            raise NotFound(f"Could not find version {cut(number)} of model {cut(name)}")
        versions = {number: versions[number]}
    return {"model_version_status": [_version_status(number, one) for number, one in versions.items()]}


def _version_status(number: str, version: ServedVersion) -> dict[str, Any]:
    # A version that is served counts as well, even if its changed files could not be loaded again.
    standing = version.standing
    failed = standing.state == "END" and standing.error
    code = _LOAD_ERRORS.get(standing.error, "INTERNAL") if failed else "OK"
    status = {"error_code": code, "error_message": standing.reason if failed else ""}
    return {"version": number, "state": standing.state, "status": status}


def described_signatures(service: Service) -> dict[str, Any]:
    """Return the signatures that are served, as the JSON of a `SignatureDefMap`; raises as `signatures_of`."""
    signatures = {signature.name: _described_signature(signature) for signature in signatures_of(service)}
    return {"signature_def": signatures}


def _described_signature(signature: NamedSignature) -> dict[str, Any]:
    inputs, outputs = (
        {info.name: _tensor_info(info) for info in side}
        for side in (signature.tensors.inputs, signature.tensors.outputs)
    )
    return {
        "inputs": inputs,
        "outputs": outputs,
        "method_name": f"tensorflow/serving/{signature.method}",
    }


def _tensor_info(info: TensorInfo) -> dict[str, Any]:
    # Protobuf's JSON writes 64-bit integers as strings.
    dims = [{"size": str(size), "name": ""} for size in info.shape]
    return {
        "dtype": DTYPES[info.dtype],
        "tensor_shape": {"dim": dims, "unknown_rank": info.any_rank},
        "name": f"{info.name}:0",
    }
