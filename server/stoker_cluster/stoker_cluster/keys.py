"""The Secret with the keys of a service: made, changed, and followed until all servers have read it."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Mapping
from typing import Any, Final, Literal

from stoker.keys.keyring import Keys, Slot
from stoker_cluster.access import Cluster, Reference
from stoker_cluster.errors import ClusterError
from stoker_cluster.objects.metadata import shared_metadata
from stoker_cluster.plan import ClusterPlan

_SECRET_BYTES: Final = 32
_GENERATION: Final = "generation"


def ensure_keys(cluster: Cluster, plan: ClusterPlan) -> Literal["created", "changed"] | None:
    """Create missing keys of a service, and set those that the plan gives; others stay as they are.

    So a service that is deployed again, or deleted in part, keeps its keys.

    Returns:
        What has become of the Secret; None if nothing.
    """
    namespace = plan.namespace or cluster.namespace
    reference = Reference("v1", "Secret", namespace, plan.keys_secret)
    Keys.from_operator(plan.primary_key, plan.secondary_key)
    given = {"primary": plan.primary_key, "secondary": plan.secondary_key}
    new = {slot: key for slot, key in given.items() if key}
    signs = bool(plan.server.get("token_auth"))
    found = cluster.find(reference)
    if found is None:
        keys = Keys.generate()
        made = {"primary": keys.primary, "secondary": keys.secondary, **new}
        if signs:
            made["signing"] = secrets.token_hex(_SECRET_BYTES)
        made[_GENERATION] = "1"
        metadata = {**shared_metadata(plan, plan.keys_secret), "namespace": namespace}
        content = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}
        cluster.create({**content, "stringData": made})
        return "created"
    data = found.get("data") or {}
    changed = {slot: key for slot, key in new.items() if _encoded(key) != data.get(slot)}
    if signs and "signing" not in data:
        changed["signing"] = secrets.token_hex(_SECRET_BYTES)
    if not changed:
        return None
    _change(cluster, reference, found, changed)
    return "changed"


def read_keys(cluster: Cluster, namespace: str, service: str) -> Keys:
    """Return the primary and the secondary key of a service; where there is one, it is both.

    Raises:
        ClusterError: There is no Secret with them.
        InvalidSettings: One of them cannot be a key.
    """
    data = _data(cluster, namespace, service)
    keys = Keys.from_operator(_decoded(data.get("primary")), _decoded(data.get("secondary")))
    if keys is None:
        raise ClusterError(f"the Secret {service}-keys in {namespace} has neither primary nor secondary")
    return keys


def replace_key(cluster: Cluster, namespace: str, service: str, slot: Slot, value: str | None = None) -> int:
    """Replace a key, by a random one unless a value is given.

    Returns:
        The number that the keys have from now on, which servers show once they hold.

    Raises:
        ClusterError: There is no Secret with keys, or somebody else changes it at this moment.
        InvalidSettings: The value cannot be a key.
    """
    found = _found(cluster, namespace, service)
    keys = Keys.generate() if value is None else Keys(value, value)
    reference = Reference("v1", "Secret", namespace, f"{service}-keys")
    return _change(cluster, reference, found, {slot: getattr(keys, slot)})


def _change(
    cluster: Cluster, reference: Reference, found: Mapping[str, Any], changed: Mapping[str, str]
) -> int:
    """Write keys with the next generation, unless the Secret has changed meanwhile: a generation has one content."""
    before = _decoded((found.get("data") or {}).get(_GENERATION)) or ""
    generation = 1 + (int(before) if before.isascii() and before.isdigit() else 0)
    data = {name: _encoded(text) for name, text in {**changed, _GENERATION: str(generation)}.items()}
    version = {"resourceVersion": found["metadata"]["resourceVersion"]}
    cluster.merge(reference, {"metadata": version, "data": data})
    return generation


def read_signing_secret(cluster: Cluster, namespace: str, service: str) -> bytes:
    """Return the secret that signs the tokens of a service."""
    text = _decoded(_data(cluster, namespace, service).get("signing")) or ""
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) < _SECRET_BYTES:
        raise ClusterError(f"the Secret {service}-keys in {namespace} has no signing secret that can be one")
    return secret


def _data(cluster: Cluster, namespace: str, service: str) -> Mapping[str, Any]:
    data: Mapping[str, Any] = _found(cluster, namespace, service).get("data") or {}
    return data


def _found(cluster: Cluster, namespace: str, service: str) -> Mapping[str, Any]:
    found = cluster.find(Reference("v1", "Secret", namespace, f"{service}-keys"))
    if found is None:
        raise ClusterError(f"there is no Secret {service}-keys in {namespace}: {service} takes no keys there")
    return found


def _encoded(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def _decoded(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        # A line end behind a key does not count, as in a folder of keys.
        return base64.b64decode(text, validate=True).decode().rstrip("\r\n")
    except (binascii.Error, UnicodeDecodeError):
        return ""
