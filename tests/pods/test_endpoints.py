"""An endpoint of two versions behind its router: shares, the header that chooses, promotion, the end of a version."""

from __future__ import annotations

from collections import Counter

from tests.http.raw_http import rows_body, scoring
from tests.pods.load import Load, ask
from tests.pods.plans import KEY, digits
from tests.pods.service import Record, await_ready, eventually, place

from stoker.cluster.access import Cluster
from stoker.cluster.applying import apply, delete
from stoker.cluster.canary import set_shares
from stoker.cluster.service import ClusterService

FACTORS = {"a": 2, "b": 3}
PATH = "/api/v1/service/digits/score"
BODY = rows_body([1, 2, 3, 4])
REQUESTS = 10_000


def shares(load: Load) -> dict[str, float]:
    """Which percentage each version has answered; fails if an answer is not of the version that it names."""
    assert all(FACTORS[one.version] == one.factor for one in load.answered)
    counts = Counter(one.version for one in load.answered)
    return {version: 100 * count / len(load.answered) for version, count in counts.items()}


def answering(host: tuple[str, int], version: str | None = None) -> str | None:
    """Which version answers a caller, who may choose one."""
    headers = [] if version is None else [("azureml-model-deployment", version)]
    return ask(host, scoring(PATH, KEY, BODY, headers)).header("azureml-model-deployment")


def await_shares(host: tuple[str, int], wanted: dict[str, int]) -> None:
    """Wait until both routers share ten requests out so."""

    def shared_out() -> bool:
        # Each counts for itself: of twenty in a row that one of them gets, ten shares come out exactly.
        counts = Counter(answering(host) for _ in range(60))
        return all(abs(counts[version] - 0.6 * share) <= 3 for version, share in wanted.items())

    eventually(shared_out, f"shares of {wanted}", within_s=200, every_s=2)


def test_a_canary_gets_its_share_of_ten_thousand_requests_and_becomes_the_default(
    cluster: Cluster, namespace: str, record: Record
) -> None:
    """Within one percent, as on Azure; no change of shares loses a request, nor does the end of a version."""
    for version, factor in FACTORS.items():
        plan = digits(
            namespace,
            image=f"stoker:{factor}",
            version_name=version,
            traffic={"a": 20.0, "b": 10.0},
            router=True,
        )
        list(apply(cluster, plan))
    for version in FACTORS:
        await_ready(ClusterService(cluster, namespace, f"digits-{version}"))
    host = place(cluster, namespace)
    await_shares(host, {"a": 90, "b": 10})
    with Load(host, factors=(2, 3), pause_s=0, most=REQUESTS) as first:
        first.join()
    record("canary 20 (default)/10", first, f"{shares(first)}")
    with Load(host, factors=(2, 3)) as between:
        set_shares(cluster, namespace, "digits", {"b": 80.0})
        await_shares(host, {"a": 20, "b": 80})
    with Load(host, factors=(2, 3), pause_s=0, most=REQUESTS) as second:
        second.join()
    record("canary 20 (default)/80", second, f"{shares(second)}")
    assert [answering(host, version) for version in "abab"] == [*"abab"]
    with Load(host, factors=(2, 3)) as last:
        set_shares(cluster, namespace, "digits", {"b": 100.0}, "b")
        await_shares(host, {"a": 0, "b": 100})
        delete(cluster, namespace, "digits-a")
        eventually(
            lambda: not ClusterService(cluster, namespace, "digits-a").pods(), "a is gone", within_s=120
        )
        last.await_answers(200)
    record("promotion and the end of a", last)
    for load in (first, between, second, last):
        assert load.ledger.broken() == []
    assert len(first.answered) == len(second.answered) == REQUESTS
    assert abs(shares(first)["b"] - 10) < 1
    assert abs(shares(second)["b"] - 80) < 1
    assert {one.version for one in last.answered[-50:]} == {"b"}
