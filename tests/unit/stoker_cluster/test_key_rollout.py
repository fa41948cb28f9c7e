"""Waiting until pods take new keys."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.stoker_cluster.puppet_api import PuppetApi

from stoker_cluster.access import Cluster
from stoker_cluster.errors import ClusterRefusal
from stoker_cluster.key_rollout import await_generation

READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def pod(name: str, **more: Any) -> dict[str, Any]:
    """A pod that can score."""
    metadata = {"name": name, "namespace": "models", **more.pop("metadata", {})}
    return {"metadata": metadata, "status": READY, **more}


@pytest.fixture
def api() -> Iterator[PuppetApi]:
    """The cluster of the pods."""
    puppet = PuppetApi()
    yield puppet
    puppet.close()


class Clock:
    """A time that passes when it is waited."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, period_s: float) -> None:
        self.now_s += period_s


def waited(
    cluster: Cluster, pods: list[dict[str, Any]], within_s: float = 100.0
) -> tuple[dict[str, str], float]:
    """The pods without the keys number 4 with reasons, and the seconds waited."""
    clock = Clock()
    unshown = await_generation(
        cluster, lambda: pods, 4, "k", within_s=within_s, clock_s=clock, sleep=clock.sleep
    )
    return dict(unshown), clock.now_s


def shows(*numbers: int) -> list[str]:
    """Metrics with these numbers, one after the other."""
    return [f"stoker_load 1\nstoker_keys_generation {number:.1f}\n" for number in numbers]


def test_all_pods_that_can_score_have_to_show_the_keys(api: PuppetApi) -> None:
    """Pods are read until they show them; later keys count too; starting and ending pods are not read."""
    api.metrics = {"a": shows(3, 3, 4), "b": shows(5)}
    others = [pod("c", status={}), pod("d", metadata={"deletionTimestamp": "now"})]
    assert waited(api.cluster(), [pod("a"), pod("b"), *others]) == ({}, 1.0)


def test_pods_without_the_keys_are_named_after_the_time(api: PuppetApi) -> None:
    """Each has the reason beside its name."""
    api.metrics = {"a": shows(3), "b": shows(4), "c": ["stoker_load 1\n"]}
    unshown, waited_s = waited(api.cluster(), [pod("a"), pod("b"), pod("c")], within_s=7.0)
    assert unshown == {"a": "it takes the keys of before", "c": "its Stoker does not tell"}
    assert waited_s == 7.0


def test_pods_that_cannot_show_keys_are_not_waited_for(api: PuppetApi) -> None:
    """A pod of an older Stoker has no such metric, and an account without the right to open ports gets none."""

    def refuse(*_: object) -> socket.socket:
        raise ClusterRefusal("pods/portforward is forbidden", 403)

    assert waited(api.cluster(), [pod("a")]) == ({"a": "its Stoker does not tell"}, 0.0)
    cluster = Cluster(api.request, "puppet", "models", tunnel=refuse)
    assert waited(cluster, [pod("a")]) == ({"a": "pods/portforward is forbidden"}, 0.0)


def test_without_pods_there_is_nothing_to_wait_for(api: PuppetApi) -> None:
    """New pods begin with the keys of the Secret."""
    assert waited(api.cluster(), []) == ({}, 0.0)
