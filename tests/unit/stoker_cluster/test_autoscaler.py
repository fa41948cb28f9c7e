"""The loop around the policy: its reads, its writes, and the cases in which it does nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from stoker.errors import InvalidSettings
from stoker_cluster.autoscaler import Autoscaler
from stoker_cluster.errors import ClusterError
from stoker_cluster.scale_access import DeploymentState
from stoker_cluster.scaling import PodLoad, ScalingPolicy


class Puppet:
    """A Deployment with pods that share a load; each look is a second."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.load = 0.0
        self.now_s = 100.0
        self.error: Exception | None = None
        self.changed_by_others = False
        self.mute: set[str] = set()
        self.done: list[tuple[str, Any]] = []
        self.was_read = asyncio.Event()

    def read_state(self) -> DeploymentState:
        if self.error is not None:
            raise self.error
        return DeploymentState(
            self.replicas, ScalingPolicy(1, 50, 70), {f"pod-{n:02}": "" for n in range(self.replicas)}
        )

    def scale(self, replicas: int, before: int) -> bool:
        assert before == self.replicas
        if self.changed_by_others:
            return False
        self.done.append(("scale", replicas))
        self.replicas = replicas
        return True

    def mark(self, going: Iterable[str], staying: Iterable[str]) -> None:
        self.done.append(("mark", (list(going), list(staying))))

    async def count_waiting(self, routers: Iterable[str]) -> int:
        raise AssertionError("there are pods")

    async def read(self, addresses: Mapping[str, str]) -> Mapping[str, PodLoad]:
        self.was_read.set()
        share = self.load / len(addresses)
        return {name: PodLoad(share, 0, self.now_s) for name in addresses if name not in self.mute}


def autoscaler(puppet: Puppet) -> Autoscaler:
    return Autoscaler("digits", puppet, puppet, clock_s=lambda: puppet.now_s)


def looks(one: Autoscaler, puppet: Puppet, count: int) -> list[float]:
    """Look so often; returns how long it would have waited each time."""

    async def play() -> list[float]:
        waited = []
        for _ in range(count):
            waited.append(await one.step())
            puppet.now_s += 1
        return waited

    return asyncio.run(play())


def test_a_step_of_load_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    """It goes from 1 to 20 pods in three looks, each of them logged."""
    puppet = Puppet(1)
    puppet.load = 14.0
    with caplog.at_level(logging.INFO):
        assert looks(autoscaler(puppet), puppet, 5) == [1.0] * 5
    assert puppet.done == [("scale", 6), ("scale", 16), ("scale", 20)]
    assert "digits: 6 pods instead of 1: a load of 14.00 in 1 that are ready" in caplog.text


def test_pods_are_marked_before_they_go_and_once() -> None:
    """Those that were marked for a step that did not come lose the mark when others are to go."""
    puppet, one = Puppet(20), None
    one = autoscaler(puppet)
    looks(one, puppet, 60)
    puppet.changed_by_others = True
    looks(one, puppet, 2)
    assert puppet.done == [("mark", (["pod-00", "pod-01"], [])), ("mark", ([], []))]
    puppet.changed_by_others = False
    puppet.mute = set()
    puppet.done.clear()
    looks(one, puppet, 1)
    assert puppet.done == [("mark", ([], [])), ("scale", 18)]
    # pod-18 and pod-19 have gone instead; the marked ones are still there, and go now with nobody else.
    looks(one, puppet, 1)
    assert puppet.done[2:] == [("mark", ([], ["pod-01"])), ("scale", 17)]


def test_a_silent_pod_keeps_all() -> None:
    """Its load is unknown, so no pod is removed."""
    puppet = Puppet(20)
    puppet.mute = {"pod-07"}
    looks(autoscaler(puppet), puppet, 200)
    assert puppet.done == []


def test_lost_api_server_keeps_the_pods_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Afterwards a minute passes before pods go, since their load was unknown meanwhile."""
    puppet = Puppet(20)
    one = autoscaler(puppet)
    looks(one, puppet, 50)
    puppet.error = ClusterError("the cluster cannot be asked")
    with caplog.at_level(logging.INFO):
        assert looks(one, puppet, 60) == [1.0] * 60
        puppet.error = None
        looks(one, puppet, 60)
    assert puppet.done == []
    assert caplog.text.count("the number of pods stays as it is: the cluster cannot be asked") == 1
    assert caplog.text.count("the cluster answers again") == 1
    looks(one, puppet, 1)
    assert ("scale", 18) in puppet.done


def test_heartbeat_follows_each_look_also_without_the_api_server() -> None:
    """The heartbeat comes after each look at the cluster, whether or not the cluster answers."""
    beats: list[float] = []

    async def run() -> None:
        stopped = asyncio.Event()
        puppet = Puppet(1)
        puppet.error = ClusterError("silent")

        def beat() -> None:
            beats.append(puppet.now_s)
            puppet.now_s += 60
            if len(beats) == 3:
                stopped.set()

        one = Autoscaler("digits", puppet, puppet, clock_s=lambda: puppet.now_s, heartbeat=beat)
        await one.run(stopped)

    asyncio.run(run())
    assert len(beats) == 3


def test_autoscaler_ends_when_it_is_stopped() -> None:
    """It waits for no further look."""
    puppet = Puppet(1)

    async def play() -> None:
        stopped = asyncio.Event()
        task = asyncio.create_task(autoscaler(puppet).run(stopped))
        await puppet.was_read.wait()
        stopped.set()
        await task

    asyncio.run(play())


def test_a_deployment_without_a_policy_ends_it() -> None:
    """An operator is to mend that."""
    puppet = Puppet(1)
    one = autoscaler(puppet)
    looks(one, puppet, 1)
    puppet.error = InvalidSettings("the annotations do not say")
    with pytest.raises(InvalidSettings):
        looks(one, puppet, 1)
