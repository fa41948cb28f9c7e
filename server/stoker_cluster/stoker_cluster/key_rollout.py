"""Waiting until all pods of a service have read changed keys."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from msgspec import Struct

from stoker_cluster.access import Cluster
from stoker_cluster.errors import ClusterError, ClusterRefusal
from stoker_cluster.objects.configuration import HTTP_PORT
from stoker_cluster.status import is_ready

KEYS_WITHIN_S: Final = 100.0
"""Time limit for pods: ten seconds, and a minute and a half in which a kubelet reads the Secret by itself."""

Unshown = Mapping[str, str]
"""Pods that have not confirmed the keys, by name, with the reason."""

_METRIC: Final = b"stoker_keys_generation "
_ANSWER_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.5
_AT_ONCE: Final = 16
_FORBIDDEN: Final = 403


class _Trouble(Struct, frozen=True):
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
