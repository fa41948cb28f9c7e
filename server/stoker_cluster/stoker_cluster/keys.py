"""The Secret with the keys of a service: made, changed, and followed until all servers have read it."""

from __future__ import annotations

import base64
import binascii
import http.client
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Literal

from stoker.keys.keyring import Keys, Slot
from stoker_cluster.access import Cluster, Reference
from stoker_cluster.errors import ClusterError, ClusterRefusal
from stoker_cluster.objects.configuration import HTTP_PORT
from stoker_cluster.objects.metadata import shared_metadata
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.status import is_ready

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


# Waiting until all pods have read changed keys.


KEYS_WITHIN_S: Final = 100.0
"""Time limit for pods: ten seconds, and a minute and a half in which a kubelet reads the Secret by itself."""

Unshown = Mapping[str, str]
"""Pods that have not confirmed the keys, by name, with the reason."""

_METRIC: Final = b"stoker_keys_generation "
_ANSWER_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.5
_AT_ONCE: Final = 16
_FORBIDDEN: Final = 403


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why a pod has not confirmed the keys, and whether that may still change."""

    text: str
    may_end: bool = True


_OLD_KEYS: Final = _Trouble("it takes the keys of before")
_TOO_OLD: Final = _Trouble("its Stoker does not tell", may_end=False)


def await_generation(
    cluster: Cluster,
    pods: Callable[[], Sequence[Mapping[str, Any]]],
    generation: int,
    key: str,
    *,
    within_s: float = KEYS_WITHIN_S,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Unshown:
    """Wait until all ready pods have confirmed these keys, or later ones.

    Args:
        pods: Returns the present pods.
        generation: The generation of the keys.
        key: A key, in case the metrics need one.

    Returns:
        The pods that have not; empty if all have.
    """
    deadline_s = clock_s() + within_s
    # By uid, which is never reused. Generations only grow, so a pod that has confirmed need not be asked again.
    shown: set[str] = set()
    with ThreadPoolExecutor(_AT_ONCE) as asking:
        while True:
            waiting = [
                pod
                for pod in _ready_pods(pods())
                if pod["metadata"].get("uid", pod["metadata"]["name"]) not in shown
            ]
            troubles = asking.map(lambda pod: _check_pod(cluster, pod, generation, key), waiting)
            unshown: dict[str, _Trouble] = {}
            for pod, trouble in zip(waiting, troubles, strict=True):
                metadata = pod["metadata"]
                if trouble is None:
                    shown.add(metadata.get("uid", metadata["name"]))
                else:
                    unshown[metadata["name"]] = trouble
            if clock_s() >= deadline_s or not any(trouble.may_end for trouble in unshown.values()):
                return {name: trouble.text for name, trouble in unshown.items()}
            sleep(_LOOK_EVERY_S)


def _ready_pods(pods: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and is_ready(pod))


def _check_pod(cluster: Cluster, pod: Mapping[str, Any], generation: int, key: str) -> _Trouble | None:
    """Return why a pod does not confirm the generation; None if it does."""
    try:
        shown = _generation(cluster, pod["metadata"]["namespace"], pod["metadata"]["name"], key)
    except (ClusterError, OSError, http.client.HTTPException, ValueError) as error:
        is_refused = isinstance(error, ClusterRefusal) and error.http_status == _FORBIDDEN
        return _Trouble(str(error) or type(error).__name__, may_end=not is_refused)
    if shown is None:
        return _TOO_OLD
    return None if shown >= generation else _OLD_KEYS


def _generation(cluster: Cluster, namespace: str, pod: str, key: str) -> int | None:
    """Return the generation of the keys that a pod reports; None if it reports none."""
    asking = http.client.HTTPConnection(pod, HTTP_PORT)
    asking.sock = cluster.tunnel(namespace, pod, HTTP_PORT)
    try:
        asking.sock.settimeout(_ANSWER_S)
        asking.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
        answer = asking.getresponse()
        content = answer.read()
    finally:
        asking.close()
    if answer.status != http.client.OK:
        raise ClusterError(f"its metrics answer {answer.status}")
    found = next((line for line in content.splitlines() if line.startswith(_METRIC)), None)
    return None if found is None else int(float(found.removeprefix(_METRIC)))
