"""An endpoint of two versions: shares, the header that chooses, promotion, the end of a version.

Callers come by the router of the endpoint, or by a gateway, as it is released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.readiness import await_ready
from tests.http.raw_http import rows_body, scoring
from tests.pods import gateway
from tests.pods.load import Load, ask
from tests.pods.node import ADDRESS, Node
from tests.pods.plans import KEY, digits
from tests.pods.service import Record, eventually, place

from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply, delete
from stoker_cluster.canary import set_shares
from stoker_cluster.cluster_service import ClusterService

VERSIONS = {2: "a", 3: "b"}
PATH = "/api/v1/service/digits/score"
BODY = rows_body([1, 2, 3, 4])
REQUESTS = 10_000


class Front(NamedTuple):
    """The front of an endpoint that callers connect to.

    Attributes:
        name: Its kind.
        fields: The fields of the plan that make it.
        place: Its address, if that is no Service of the endpoint.
        names_versions: Whether its answers say which version they are of.
    """

    name: str
    fields: Mapping[str, Any]
    place: tuple[str, int] | None
    names_versions: bool


@pytest.fixture(params=["router", "gateway"])
def front(
    request: pytest.FixtureRequest, plane: ControlPlane, machine: Node, namespace: str
) -> Iterator[Front]:
    """The router of the endpoint, and Traefik."""
    if request.param == "router":
        yield Front("router", {"router": True}, None, names_versions=True)
        return
    if gateway.found() is None:
        pytest.skip("there is no traefik; make test-pods installs it")
    where = (ADDRESS, 8000)
    with gateway.running(plane, machine.folder, namespace, where):
        yield Front("gateway", {"gateway": f"{namespace}/{gateway.NAME}"}, where, names_versions=False)


def shares(load: Load) -> dict[str, float]:
    """The percentage of answers by version."""
    counts = Counter(VERSIONS[one.factor] for one in load.answered)
    return {version: 100 * count / len(load.answered) for version, count in counts.items()}


def answering(host: tuple[str, int], version: str | None = None) -> str | None:
    """The version that answers a caller, who may choose one; None without an answer."""
    headers = [] if version is None else [("azureml-model-deployment", version)]
    answer = ask(host, scoring(PATH, KEY, BODY, headers))
    return VERSIONS[int(answer.json()[0][0])] if answer.status == 200 else None


def await_shares(host: tuple[str, int], wanted: dict[str, int]) -> None:
    """Wait until they are shared out so, by both routers if there are two."""

    def shared_out() -> bool:
        # Each counts for itself: of twenty in a row that one of them gets, ten shares come out exactly.
        counts = Counter(answering(host) for _ in range(60))
        return all(abs(counts[version] - 0.6 * share) <= 3 for version, share in wanted.items())

    eventually(shared_out, f"shares of {wanted}", within_s=200, every_s=2)


def test_canary_gets_its_share_and_becomes_the_default(
    cluster: Cluster, plane: ControlPlane, namespace: str, front: Front, record: Record
) -> None:
    """Within one percent, as on Azure; no change of shares loses a request, nor does the end of a version."""
    for factor, version in VERSIONS.items():
        values = {"version_name": version, "traffic": {"a": 20.0, "b": 10.0}, **front.fields}
        list(apply(cluster, digits(namespace, image=f"stoker:{factor}", **values)))
    for version in VERSIONS.values():
        await_ready(ClusterService(cluster, namespace, f"digits-{version}"))
    if front.name == "gateway":
        gateway.await_route(plane, namespace, "digits")
    host = front.place or place(cluster, namespace)
    await_shares(host, {"a": 90, "b": 10})
    with Load(host, factors=(2, 3), pause_s=0, most=REQUESTS) as first:
        first.join()
    record(f"{front.name}: canary 20 (default)/10", first, f"{shares(first)}")
    with Load(host, factors=(2, 3)) as between:
        set_shares(cluster, namespace, "digits", {"b": 80.0})
        await_shares(host, {"a": 20, "b": 80})
    with Load(host, factors=(2, 3), pause_s=0, most=REQUESTS) as second:
        second.join()
    record(f"{front.name}: canary 20 (default)/80", second, f"{shares(second)}")
    assert [answering(host, version) for version in "abab"] == [*"abab"]
    with Load(host, factors=(2, 3)) as last:
        set_shares(cluster, namespace, "digits", {"b": 100.0}, "b")
        await_shares(host, {"a": 0, "b": 100})
        delete(cluster, namespace, "digits-a")
        eventually(
            lambda: not ClusterService(cluster, namespace, "digits-a").pods(), "a is gone", within_s=120
        )
        last.await_answers(200)
    record(f"{front.name}: promotion and the end of a", last)
    loads = (first, between, second, last)
    assert [load.ledger.broken() for load in loads] == [[]] * 4
    named = {one.version for load in loads for one in load.answered if one.version != VERSIONS[one.factor]}
    assert named == (set() if front.names_versions else {""})
    assert len(first.answered) == len(second.answered) == REQUESTS
    assert abs(shares(first)["b"] - 10) < 1
    assert abs(shares(second)["b"] - 80) < 1
    assert {one.factor for one in last.answered[-50:]} == {3}
