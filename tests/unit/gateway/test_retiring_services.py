"""Services that get no new requests and leave after their last answers."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

from tests.puppets import puppet_service

from stoker.gateway.attached_replicas import AttachedReplicas
from stoker.gateway.retiring_services import LeavingService, RetiringServices
from stoker.gateway.scoring.service import Service


class Stage:
    """Retiring services without devices.

    Attributes:
        arriving: The services for which a body is being received.
        retired: The numbers of the services that are retired completely.
    """

    def __init__(self) -> None:
        self.arriving: list[Service] = []
        self.retired: list[int] = []
        self.forgotten: list[Any] = []
        replicas = SimpleNamespace(forget=self.forgotten.append)
        self.services = RetiringServices(
            cast(AttachedReplicas, replicas), lambda service: service in self.arriving, self.retired.append
        )


def test_add_of_no_service_is_reported_at_once() -> None:
    """A supervisor that retires a service twice gets both answers."""
    stage = Stage()
    stage.services.add(7, None)
    assert stage.retired == [7]


def test_sweep_keeps_a_service_until_its_bodies_have_arrived() -> None:
    """It can be found meanwhile, for larger rows."""
    stage, service = Stage(), puppet_service()
    stage.arriving = [service]
    stage.services.add(1, service)
    stage.services.sweep(time.monotonic_ns())
    assert (stage.retired, stage.services.find(1), list(stage.services)) == ([], service, [service])
    stage.arriving.clear()
    stage.services.sweep(time.monotonic_ns())
    assert (stage.retired, stage.services.find(1), stage.forgotten) == ([1], None, [[]])


def test_sweep_removes_a_service_with_requests_that_take_too_long() -> None:
    """They get their timeout and half a minute more."""
    stage, service = Stage(), puppet_service(timeout_ms=1000)
    stage.arriving = [service]
    stage.services.add(1, service)
    until_ns = LeavingService.from_now(1, service).until_ns
    stage.services.sweep(until_ns - 1_000_000_000)
    assert stage.retired == []
    stage.services.sweep(until_ns)
    assert stage.retired == [1]
