"""The parameters of a load request: which versions, and Triton's model configuration as its clients send it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from stoker.echo import cut, quoted
from stoker.errors import Forbidden, InvalidSettings, MalformedBody, StokerError
from stoker.gateway.describing.model_config import model_config
from stoker.models.load_config import ADJUSTED, adjustments_of
from stoker.models.pbtxt_fields import WrongField
from stoker.settings.adjustments import Adjustments
from stoker.versions import read_versions

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway

__all__ = ["LoadWish", "load_wish", "read_config"]

_TENSORS: Final = ("input", "output")
_DESCRIBES: Final = ("name", "platform", "backend", "model_transaction_policy", *_TENSORS)
"""Fields of a configuration that describe the model's files, and so cannot be changed by a load."""


@dataclass(frozen=True, slots=True)
class LoadWish:
    """What a load request asks for.

    Attributes:
        versions: Which versions to serve, if not those of the settings.
        adjustments: Settings of batching that replace the model's own.
    """

    versions: str | tuple[int, ...] | None = None
    adjustments: Adjustments = field(default_factory=Adjustments)


def load_wish(
    gateway: Gateway, name: str, parameters: Mapping[str, Any], *, takes_config: bool = True
) -> LoadWish:
    """Read the parameters of a load request.

    Args:
        gateway: The frontend's gateway.
        name: Name of the model.
        parameters: The parameters by name.
        takes_config: Whether a configuration is accepted among them.

    Raises:
        Forbidden: The request contains files.
        MalformedBody: A parameter is unknown or malformed.
    """
    wish = LoadWish()
    for key, value in parameters.items():
        if key.startswith("file:"):
            raise Forbidden("files cannot be uploaded: put the model into the repository, and load it then")
        if key != "config" or not takes_config:
            raise MalformedBody(f"failed to load '{cut(name)}', the parameter '{cut(key)}' is not known")
        if not isinstance(value, str):
            raise MalformedBody(
                f"failed to load '{cut(name)}', the parameter 'config' has to be a text of JSON"
            )
        wish = read_config(name, value, _served_config(gateway, name))
    return wish


def read_config(name: str, config: str, served: Mapping[str, Any] | None = None) -> LoadWish:
    """Read a model configuration.

    Args:
        name: Name of the model.
        config: The configuration, Triton's `ModelConfig` as JSON.
        served: The configuration of the served model; None if it is not served.

    Raises:
        MalformedBody: It is malformed, or would change something that a load cannot change.
    """
    problem = f"failed to load '{cut(name)}', "
    try:
        values = json.loads(config)
    except (ValueError, RecursionError):
        raise MalformedBody(problem + "its config is not JSON") from None
    if not isinstance(values, dict):
        raise MalformedBody(problem + "its config is not an object")
    unknown = sorted(set(values).difference(_DESCRIBES, ADJUSTED, ("version_policy",)))
    if unknown:
        shown = cut(", ".join(map(cut, unknown[:100])))
        raise MalformedBody(
            f"{problem}config cannot change {shown}, only version_policy and {', '.join(ADJUSTED)}; the rest is in "
            "the server's settings"
        )
    if values.get("name", name) != name:
        raise MalformedBody(problem + f"its config is that of another model: {quoted(values['name'])}")
    for field_name in ("platform", "backend", *_TENSORS):
        if served is not None and _says_otherwise(values.get(field_name), served[field_name]):
            raise MalformedBody(f"{problem}config cannot change {field_name}, which follows from its files")
    try:
        return LoadWish(_versions(values.get("version_policy")), adjustments_of(values, "its config"))
    except (ValueError, InvalidSettings) as error:
        raise MalformedBody(f"{problem}{cut(str(error))}") from None


def _served_config(gateway: Gateway, name: str) -> Mapping[str, Any] | None:
    """The configuration of the served model; None if its tensors are not known now."""
    try:
        service = gateway.find(name)
        return model_config(service, gateway.models[service.name].served)
    except StokerError:
        return None


def _says_otherwise(given: Any, served: Any) -> bool:
    """Whether a configuration sets a field to another value than it has."""
    if not given:
        return False
    if isinstance(served, str):
        return bool(given != served)
    return bool(_tensors(given) != _tensors(served))


def _tensors(infos: Any) -> Any:
    """Name, type and sizes of each tensor, as far as they are valid; protobuf's JSON writes sizes as strings."""
    if not isinstance(infos, list) or not all(isinstance(info, Mapping) for info in infos):
        return None
    return [
        (info.get("name"), info.get("data_type"), [str(size) for size in _listed(info.get("dims"))])
        for info in infos
    ]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _versions(policy: Any) -> str | tuple[int, ...] | None:
    """The versions that a version policy names; raises ValueError if it is not valid."""
    match policy:
        case None:
            return None
        case {"latest": {"num_versions": count}, **rest} if not rest:
            wanted: Any = f"latest:{count}"
        case {"latest": {} as latest, **rest} if not latest and not rest:
            wanted = "latest"
        case {"all": {} as every, **rest} if not every and not rest:
            wanted = "all"
        case {"specific": {"versions": list() as numbers}, **rest} if not rest:
            wanted = numbers
        case _:
            raise WrongField("its version_policy has to be latest, all or specific")
    try:
        return read_versions(wanted)
    except ValueError as error:
        raise WrongField(f"its version_policy {error}") from None
