"""`stoker autoscale`: reads the load of all pods of a Deployment, and changes their number.

Without an answer nothing is changed: if pods or the API server do not answer, or if somebody else changes the
Deployment at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from stoker_cluster.errors import ClusterError
from stoker_cluster.pod_loads import PodLoads
from stoker_cluster.scale_access import ClusterDeployment, DeploymentState
from stoker_cluster.scaling import (
    Decision,
    PodLoad,
    Pods,
    ScalingPolicy,
    ScalingState,
    decide,
    period_s,
)

logger = logging.getLogger(__name__)


class Autoscaler:
    """Sets the number of pods of a Deployment by their load.

    Args:
        deployment: The Deployment; called on another thread, one call at a time.
    """

    def __init__(
        self,
        name: str,
        deployment: ClusterDeployment,
        loads: PodLoads,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        heartbeat: Callable[[], object] = lambda: None,
    ) -> None:
        self._name = name
        self._deployment = deployment
        self._loads = loads
        self._clock_s = clock_s
        self._heartbeat = heartbeat
        self._policy = ScalingPolicy()
        self._state = ScalingState()
        self._marked: frozenset[str] = frozenset()
        self._trouble = ""

    async def run(self, stopped: asyncio.Event) -> None:
        """Act periodically until it is stopped."""
        while not stopped.is_set():
            begun_s = self._clock_s()
            wait_s = await self.step() - (self._clock_s() - begun_s)
            self._heartbeat()
            try:
                await asyncio.wait_for(stopped.wait(), max(0.0, wait_s))
            except TimeoutError:
                continue

    async def step(self) -> float:
        """Read the loads and act once; returns the seconds between the start of this call and of the next."""
        try:
            seen = await asyncio.to_thread(self._deployment.read_state)
            self._policy = seen.policy
            loads = await self._loads.read(seen.addresses)
            waiting = await self._loads.count_waiting(seen.routers) if seen.routers else 0
            await self._follow(seen, loads, waiting)
        except ClusterError as error:
            self._log_trouble(str(error))
            return self._policy.refresh_s
        self._log_trouble("")
        return period_s(self._policy, len(seen.addresses))

    async def _follow(self, seen: DeploymentState, loads: Mapping[str, PodLoad], waiting: int) -> None:
        pods = Pods(seen.replicas, seen.addresses.keys(), loads, waiting)
        decision = decide(pods, self._clock_s(), self._state, seen.policy)
        self._state = decision.state
        if decision.replicas == seen.replicas:
            return
        if decision.replicas < seen.replicas:
            await self._mark(decision, seen)
        done = await asyncio.to_thread(self._deployment.scale, decision.replicas, seen.replicas)
        logger.info(
            "%s: %d pods instead of %d: a load of %.2f in %d that are ready (%d silent), %d requests wait, wanted is "
            "%d percent each%s",
            self._name,
            decision.replicas,
            seen.replicas,
            decision.load,
            len(seen.addresses),
            decision.unknown,
            waiting,
            seen.policy.target_percent,
            "" if done else "; not done, for somebody else has changed their number",
        )

    async def _mark(self, decision: Decision, seen: DeploymentState) -> None:
        """Mark the least loaded pods as the first to be removed, and unmark those marked before."""
        going = frozenset(decision.leaving)
        staying = (self._marked - going) & seen.addresses.keys()
        await asyncio.to_thread(self._deployment.mark, sorted(going - self._marked), sorted(staying))
        self._marked = going

    def _log_trouble(self, trouble: str) -> None:
        """Log a trouble when it begins and when it ends."""
        if trouble and trouble != self._trouble:
            logger.warning("%s: the number of pods stays as it is: %s", self._name, trouble)
        elif self._trouble and not trouble:
            logger.info("%s: the cluster answers again", self._name)
        self._trouble = trouble
