"""Services whose models are unloaded until the next request."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

from tests.puppets import metric_memory, puppet_service

from stoker.gateway.attached_replicas import AttachedReplicas
from stoker.gateway.gateway import Gateway
from stoker.gateway.scoring.service import Service
from stoker.gateway.sleeping_services import SleepingServices
from stoker.metrics.layout import UNLOADED_SLOT


class Stage:
    """One service that is loaded on demand, in slot 5 of the metrics.

    Attributes:
        slept: The numbers of the services whose models are unloaded.
        moved: The slots of the metrics that the service was moved to.
    """

    def __init__(self) -> None:
        self.slept: list[int] = []
        self.moved: list[int] = []
        self.service = puppet_service()
        self.on_demand = SimpleNamespace(slot=5, leaving=[], when_served=self._keep)
        self.service.on_demand = cast(Any, self.on_demand)
        self.unloads: list[Any] = []
        page = SimpleNamespace(move_model=lambda _, slot: self.moved.append(slot))
        replicas = cast(AttachedReplicas, SimpleNamespace(forget=lambda _: None))
        services: dict[int, Service] = {1: self.service, 2: puppet_service()}
        gateway = cast(Gateway, SimpleNamespace(metrics=metric_memory()))
        self.sleeping = SleepingServices(gateway, cast(Any, page), services, replicas, self.slept.append)

    def _keep(self, unload: Any) -> None:
        self.unloads.append(unload)


def test_sleep_of_a_service_without_replicas_is_reported_at_once() -> None:
    """It counts in the slot of unloaded models from then on."""
    stage = Stage()
    stage.sleeping.sleep(1)
    assert (stage.slept, stage.moved, stage.on_demand.slot) == ([1], [UNLOADED_SLOT], UNLOADED_SLOT)


def test_sleep_of_other_services_changes_nothing() -> None:
    """The supervisor gets its answer."""
    stage = Stage()
    stage.sleeping.sleep(2)
    stage.sleeping.sleep(3)
    assert (stage.slept, stage.moved) == ([2, 3], [])


def test_sleep_waits_until_the_requests_of_the_load_are_served() -> None:
    """It waits for at most five seconds."""
    for served in (True, False):
        stage = Stage()
        stage.service.replicas.exchanges = [cast(Any, SimpleNamespace(close=lambda: None))]
        left: list[bool] = []
        stage.service.sleep = lambda left=left: left.append(True)  # type: ignore[method-assign,misc]
        stage.sleeping.sleep(1)
        now_ns = time.monotonic_ns()
        stage.sleeping.sweep(now_ns)
        assert left == []
        if served:
            stage.unloads[0]()
        else:
            stage.sleeping.sweep(now_ns + 5_000_000_000)
        assert left == [True]


def test_move_to_the_same_slot_changes_nothing() -> None:
    """The supervisor repeats slots with each route."""
    stage = Stage()
    stage.sleeping.move(stage.service, 5)
    assert stage.moved == []
    stage.sleeping.move(stage.service, 6)
    assert stage.moved == [6]
