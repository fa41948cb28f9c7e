"""The versions that are compared: which are sampled, and which shadows they have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.puppets import puppet_service

from stoker.control.frontend_messages import Compare
from stoker.deployment import Deployment
from stoker.gateway.scoring.service import Service
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.gateway.takeover.compared_versions import ComparedVersions
from stoker.gateway.takeover.samples import Samples
from stoker.gateway.takeover.shadows import Shadow
from stoker.settings.traffic import Parity
from stoker.settings.versions import VersionStatus
from stoker.takeover.comparison import Comparison


def deployment(version: int, number: int, parity: Parity) -> Deployment:
    """A version of the model m."""
    return Deployment(
        "m", version, "onnx", Path("m"), Path(), max_batch_rows=1, max_body_bytes=9, number=number, parity=parity
    )  # fmt: skip


def test_sweep_samples_the_versions_that_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed version is sampled no more."""
    sampled: list[Any] = []
    monkeypatch.setattr(Samples, "collect", lambda _, exchanges, __: sampled.append(exchanges))
    services: dict[int, Service] = {1: puppet_service(), 2: puppet_service()}
    compared = ComparedVersions(services)
    compared.add(deployment(3, 1, Parity("warn")))
    compared.add(deployment(7, 2, Parity("off")))
    compared.sweep(0, {}, lambda _: False)
    assert len(sampled) == 1
    assert sampled[0] is services[1].exchanges
    compared.remove(1)
    compared.sweep(0, {}, lambda _: False)
    assert len(sampled) == 1


def test_compare_with_an_unknown_version_is_empty() -> None:
    """It may have been retired since the supervisor's question."""
    compared = ComparedVersions({1: puppet_service()})
    assert asyncio.run(compared.compare(Compare(0, 1, 2, None))) == Comparison()


@pytest.mark.parametrize("has_state", [False, True])
def test_sweep_copies_requests_to_shadows_unless_they_have_state(
    monkeypatch: pytest.MonkeyPatch, has_state: bool
) -> None:
    """The tolerance is that of the shadow's deployment."""
    copied: list[Any] = []
    monkeypatch.setattr(Shadow, "copy_requests", lambda _, *copy: copied.append(copy))
    main, shadow = puppet_service(version="3"), puppet_service(version="7")
    compared = ComparedVersions({1: main, 2: shadow})
    for version, number, tolerance in ((3, 1, 0.1), (7, 2, 0.2)):
        compared.add(deployment(version, number, Parity("off", tolerance=tolerance)))
    status = VersionStatus(0, "AVAILABLE")
    models = {"m": ServedModel({"3": ServedVersion(status, main), "7": ServedVersion(status, shadow)}, "3")}
    compared.route_shadows("m", {"7": 50})
    compared.sweep(0, models, lambda _: has_state)
    assert copied == ([] if has_state else [([main], shadow, 0.2)])
    compared.route_shadows("m", {})
    copied.clear()
    compared.sweep(0, models, lambda _: has_state)
    assert copied == []


def test_route_shadows_keeps_a_shadow_with_the_same_percentage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its share of the requests goes on being counted."""
    made: list[int] = []

    def shadow(percent: int) -> Any:
        made.append(percent)
        return SimpleNamespace(percent=percent)

    monkeypatch.setattr("stoker.gateway.takeover.compared_versions.Shadow", shadow)
    compared = ComparedVersions({})
    for percents in ({"7": 50}, {"7": 50, "8": 1}, {"7": 25}):
        compared.route_shadows("m", percents)
    assert made == [50, 1, 25]
