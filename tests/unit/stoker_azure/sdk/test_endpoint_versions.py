"""The versions of an endpoint as plain values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stoker.errors import InvalidSettings
from stoker_azure.sdk.services.records import Endpoint, Version, VersionChange

FIRST = Endpoint({"a": Version(traffic_percentile=20.0, is_control=True)}, "a")


def with_b(share: float, **among: Any) -> Endpoint:
    """The endpoint with a second version."""
    version = Version(traffic_percentile=share)
    return FIRST.with_new_version("b", version).with_version("b", version, **among)


def test_default_version_gets_the_rest_of_the_shares() -> None:
    """Azure's example: a gets 90 with b=10; b gets 80 with b=40 and default. A version that waits gets nothing."""
    assert FIRST.weights == {"a": 10_000}
    assert FIRST.with_new_version("b", Version(traffic_percentile=10.0)).weights == {"a": 10_000, "b": 0}
    assert with_b(10).weights == {"a": 9_000, "b": 1_000}
    assert with_b(40, is_default=True).weights == {"a": 2_000, "b": 8_000}
    assert with_b(40, is_default=True).without_version("a").weights == {"b": 10_000}


def test_there_is_one_control_and_one_default() -> None:
    """A new one takes the place of the old one; what says nothing of it leaves it."""
    kinds = {name: version.kind for name, version in with_b(1).versions.items()}
    assert kinds == {"a": "control", "b": "treatment"}
    new = with_b(1, is_control=True)
    assert [new.versions[name].is_control for name in "ab"] == [False, True]
    again = new.with_version("b", msgspec.structs.replace(new.versions["b"], traffic_percentile=2.0))
    assert again.versions["b"].is_control
    assert again.default == "a"


def test_change_keeps_other_keywords() -> None:
    """Of keywords those that contradict new ones go, as in an update of a service."""
    version = Version(keywords={"num_replicas": 2, "cpu_cores": 1}, models=["m:1"], traffic_percentile=5.0)
    changed = VersionChange(keywords={"autoscale_enabled": True}, traffic_percentile=7).apply_to(version)
    assert changed.keywords == {"cpu_cores": 1, "autoscale_enabled": True}
    assert (changed.models, changed.traffic_percentile) == (["m:1"], 7.0)
    assert VersionChange(models=["m:2"]).apply_to(version).models == ["m:2"]
    with pytest.raises(InvalidSettings, match="primary_key is said of the endpoint"):
        VersionChange(keywords={"primary_key": "k"}).apply_to(version)


@pytest.mark.parametrize("share", [-1.0, 80.01, 0.001, float("nan")])
def test_shares_that_cannot_be_kept_exactly_are_refused(share: float) -> None:
    """More than 100 together, and finer ones than a hundredth of a percent."""
    with pytest.raises(InvalidSettings, match="traffic"):
        with_b(share)
