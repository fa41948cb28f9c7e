"""Readers of Kubernetes' values, such as names, labels, taints and resources; see `stoker.settings.readers`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from stoker.settings.names import read_address
from stoker.settings.readers import as_text, listed_texts, text_of

MODELS_FOLDER: Final = "/models"
"""The folder of models in the pod."""

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII
)
_SERVICE: Final = re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?", re.ASCII)
_QUALIFIED: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_WORD: Final = re.compile(r"[!-~]+", re.ASCII)
_SHARE: Final = re.compile(r"(100|[1-9]?[0-9])%", re.ASCII)
_DIGEST: Final = re.compile(r".+@sha256:[0-9a-f]{64}", re.ASCII)
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MOST_REPLICAS: Final = 10_000


read_object_name: Final = text_of(
    _SERVICE, "must be 1 to 50 small letters, digits and '-', the first a letter, the last none of '-'"
)
"""Reads a name of an object from which names of other objects are made."""
read_label: Final = text_of(
    _LABEL, "must be 1 to 63 small letters, digits and '-', which neither begins nor ends it"
)
"""Reads a name of a namespace."""
read_word: Final = text_of(_WORD, "must be a text without spaces")
"""Reads a text without spaces, such as the reference of an image."""
read_claim: Final = text_of(_SUBDOMAIN, "must be the name of a PersistentVolumeClaim")
"""Reads a name of a PersistentVolumeClaim."""


def read_object_names(value: Any) -> tuple[str, ...]:
    """Read names of objects, or hosts."""
    rule = "must be a name, or several with commas between them"
    names = listed_texts(value, rule)
    if not names:
        raise ValueError(rule)
    for name in names:
        if not _SUBDOMAIN.fullmatch(name.removeprefix("*.")):
            raise ValueError("must be names of small letters, digits, '-' and '.'")
    return tuple(names)


def read_resource(value: Any) -> str:
    """Read the resource name of a device plugin, for instance nvidia.com/gpu."""
    if not isinstance(value, str) or "/" not in value or not _QUALIFIED.fullmatch(value):
        raise ValueError(
            "must be the name of a resource, for instance nvidia.com/gpu or nvidia.com/mig-1g.10gb"
        )
    return value


def read_count_or_share(value: Any) -> int | str:
    """Read a number of pods, or a percentage of them."""
    text = str(value)
    if not isinstance(value, bool) and text.isascii() and text.isdigit() and int(text) <= _MOST_REPLICAS:
        return int(text)
    if not _SHARE.fullmatch(text):
        raise ValueError("must be a number of pods or a percentage, for instance 1 or 10%")
    return text


def read_gateway(value: Any) -> str:
    """Read a Gateway as NAMESPACE/NAME."""
    namespace, slash, name = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not (slash and _LABEL.fullmatch(namespace) and _SUBDOMAIN.fullmatch(name)):
        raise ValueError("must be the Gateway as NAMESPACE/NAME")
    return str(value)


def read_models_place(value: Any) -> str:
    """Read the source of models: `image`, a claim, or an image volume."""
    allowed = "must be image, pvc://CLAIM/PATH or oci://REFERENCE@sha256:DIGEST"
    if value == "image":
        return "image"
    scheme, _, rest = value.partition("://") if isinstance(value, str) else ("", "", "")
    match scheme:
        case "pvc":
            claim, _, folder = rest.partition("/")
            if not _SUBDOMAIN.fullmatch(claim) or ".." in folder.split("/"):
                raise ValueError(allowed)
        case "oci":
            if not _WORD.fullmatch(rest) or not _DIGEST.fullmatch(rest):
                raise ValueError(f"{allowed}; a tag may name another image tomorrow, a digest cannot")
        case _ if read_address(str(value)) is not None:
            raise ValueError(f"{allowed}; an address is the path of a model: {value}/digits")
        case _:
            raise ValueError(allowed)
    return str(value)


def read_labels_by_name(value: Any) -> dict[str, str]:
    """Read labels of nodes: a mapping, or NAME=VALUE with commas between them."""
    labels = _pairs(value, "NAME=VALUE, several with commas between them")
    for name, content in labels.items():
        if not _QUALIFIED.fullmatch(name) or not _VALUE.fullmatch(content):
            raise ValueError(f"must be labels, which {name}={content} cannot be")
    return labels


def is_label(name: str) -> bool:
    """Whether this can be the name of a label, without a prefix."""
    return "/" not in name and _QUALIFIED.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Whether a label can have this value."""
    return _VALUE.fullmatch(text) is not None


def read_tolerations(value: Any) -> tuple[str, ...]:
    """Read tolerated taints in the form of `kubectl taint`: NAME[=VALUE][:EFFECT]."""
    taints = listed_texts(value, "must be NAME[=VALUE][:EFFECT], several with commas between them")
    for taint in taints:
        key, content, effect = taint_parts(taint)
        if not _QUALIFIED.fullmatch(key) or not _VALUE.fullmatch(content or ""):
            raise ValueError(f"must be NAME[=VALUE][:EFFECT], which {taint!r} is not")
        if effect not in ("", *_EFFECTS):
            raise ValueError(f"must have one of the effects {', '.join(_EFFECTS)}, not {effect}")
    return tuple(taints)


def taint_parts(taint: str) -> tuple[str, str | None, str]:
    """Split a taint into its name, its value if any, and its effect; empty for all effects."""
    pair, _, effect = taint.strip().partition(":")
    key, equals, content = pair.partition("=")
    return key, content if equals else None, effect


def read_traffic(value: Any) -> dict[str, float]:
    """Read percentages of versions: a mapping, or NAME=PERCENTAGE with commas between them."""
    result: dict[str, float] = {}
    for name, content in _pairs(value, "VERSION=PERCENTAGE, several with commas between them").items():
        read_object_name(name)
        try:
            share = float(content)
        except ValueError:
            raise ValueError(f"must have numbers as percentages, not {content!r} for {name}") from None
        if not 0 <= share <= 100:
            raise ValueError(f"must have percentages from 0 to 100, not {content} for {name}")
        result[name] = share
    return result


def _pairs(value: Any, form: str) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {str(name): as_text(content) for name, content in value.items()}
    if not isinstance(value, str) or not value:
        raise ValueError(f"must be {form}")
    pairs = [pair.strip().partition("=") for pair in value.split(",")]
    if not all(name and equals for name, equals, _ in pairs):
        raise ValueError(f"must be {form}")
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise ValueError("must have each name once")
    return {name: content for name, _, content in pairs}
