"""Waiting until pods take the keys that a Secret has: each shows the number of those that hold in its metrics."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from stoker.errors import ClusterError, ClusterRefusal
from stoker_cluster.access import Cluster
from stoker_cluster.pod_file import HTTP_PORT
from stoker_cluster.standing import is_ready

__all__ = ["KEYS_WITHIN_S", "Unshown", "await_generation"]

KEYS_WITHIN_S: Final = 100.0
"""How long pods have: ten seconds, and what a kubelet takes that does not look at once, a minute and a half."""

Unshown = Mapping[str, str]
"""Pods that have not shown that they take the keys, by name, and what they have said instead."""

_METRIC: Final = b"stoker_keys_generation "
_ANSWER_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.5
_AT_ONCE: Final = 16
_FORBIDDEN: Final = 403


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What a pod has said instead of the number, and whether it may say something else yet."""

    text: str
    may_end: bool = True


_OF_BEFORE: Final = _Trouble("it takes the keys of before")
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
    """Wait until all pods that can score have shown these keys, or later ones.

    Args:
        cluster: Their cluster.
        pods: Gives them, as they are now.
        generation: The number of the keys.
        key: A key, for metrics that need one.
        within_s: Give up after this time.
        clock_s: Gives the time.
        sleep: Lets time pass.

    Returns:
        Those that have not; none if all have.
    """
    deadline_s = clock_s() + within_s
    # By what no other pod has ever had: numbers do not fall, so who has shown it need not be asked again.
    shown: set[str] = set()
    with ThreadPoolExecutor(_AT_ONCE) as asking:
        while True:
            waiting = [
                pod
                for pod in _scoring(pods())
                if pod["metadata"].get("uid", pod["metadata"]["name"]) not in shown
            ]
            said = asking.map(lambda pod: _said(cluster, pod, generation, key), waiting)
            unshown: dict[str, _Trouble] = {}
            for pod, trouble in zip(waiting, said, strict=True):
                metadata = pod["metadata"]
                if trouble is None:
                    shown.add(metadata.get("uid", metadata["name"]))
                else:
                    unshown[metadata["name"]] = trouble
            if clock_s() >= deadline_s or not any(trouble.may_end for trouble in unshown.values()):
                return {name: trouble.text for name, trouble in unshown.items()}
            sleep(_LOOK_EVERY_S)


def _scoring(pods: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and is_ready(pod))


def _said(cluster: Cluster, pod: Mapping[str, Any], generation: int, key: str) -> _Trouble | None:
    """What a pod says instead of the number; None if it shows it."""
    try:
        shown = _generation(cluster, pod["metadata"]["namespace"], pod["metadata"]["name"], key)
    except (ClusterError, OSError, http.client.HTTPException, ValueError) as error:
        is_refused = isinstance(error, ClusterRefusal) and error.http_status == _FORBIDDEN
        return _Trouble(str(error) or type(error).__name__, may_end=not is_refused)
    if shown is None:
        return _TOO_OLD
    return None if shown >= generation else _OF_BEFORE


def _generation(cluster: Cluster, namespace: str, pod: str, key: str) -> int | None:
    """The number that a pod shows; None if it shows none."""
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
