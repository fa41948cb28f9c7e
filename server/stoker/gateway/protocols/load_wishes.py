"""What the parameters of a load ask for: which versions, and Triton's configuration as its clients send it."""

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
"""What a configuration says of the model itself, which is as its files are."""


@dataclass(frozen=True, slots=True)
class LoadWish:
    """What a load asks for.

    Attributes:
        versions: Which versions, if not those that the settings ask for.
        adjustments: How they are to be batched.
    """

    versions: str | tuple[int, ...] | None = None
    adjustments: Adjustments = field(default_factory=Adjustments)


def load_wish(
    gateway: Gateway, name: str, parameters: Mapping[str, Any], *, takes_config: bool = True
) -> LoadWish:
    """Return what the parameters of a load ask for.

    Args:
        gateway: What is served.
        name: Name of the model.
        parameters: The parameters by name.
        takes_config: Whether a configuration may be among them.

    Raises:
        Forbidden: There are files.
        MalformedBody: One is unknown, or malformed.
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
    """Return what a model configuration asks for.

    Args:
        name: Name of the model.
        config: The configuration, Triton's `ModelConfig` as JSON.
        served: The configuration that it has now; None where it is not served.

    Raises:
        MalformedBody: It is malformed, or would change what a load does not.
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
    """The configuration of a model that is served; None of one whose tensors are not known now."""
    try:
        service = gateway.find(name)
        return model_config(service, gateway.models[service.name].served)
    except StokerError:
        return None


def _says_otherwise(given: Any, served: Any) -> bool:
    """Whether a configuration says something, and not what is so."""
    if not given:
        return False
    if isinstance(served, str):
        return bool(given != served)
    return bool(_tensors(given) != _tensors(served))


def _tensors(infos: Any) -> Any:
    """Names, types and sizes, as far as they are such; protobuf writes sizes as texts."""
    if not isinstance(infos, list) or not all(isinstance(info, Mapping) for info in infos):
        return None
    return [
        (info.get("name"), info.get("data_type"), [str(size) for size in _listed(info.get("dims"))])
        for info in infos
    ]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _versions(policy: Any) -> str | tuple[int, ...] | None:
    """Which versions a policy names; raises ValueError for what is none."""
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
