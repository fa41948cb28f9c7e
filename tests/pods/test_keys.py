"""Keys change in pods that run."""

from __future__ import annotations

import time

from tests.cluster.readiness import await_ready
from tests.http.raw_http import bearer, request, rows_body
from tests.patience import PATIENCE_S
from tests.pods.load import Load, ask
from tests.pods.plans import KEY, OTHER_KEY, digits
from tests.pods.service import Record, eventually, place, pod_addresses

from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.cluster_service import ClusterService

NEW_KEY = "another-key-of-the-tests-00003"


def status_with(address: str, key: str) -> int:
    """The status of a pod's answer to a key."""
    body = rows_body([1, 2, 3, 4])
    message = request("POST", "/api/v1/service/digits/score", [bearer(key)], body)
    return ask((address, 8080), message).status


def test_replacing_a_key_does_not_disturb_callers_of_the_other(
    cluster: Cluster, namespace: str, record: Record
) -> None:
    """The nodes read the Secret at once, the pods follow without a restart, and the old key is refused."""
    list(apply(cluster, digits(namespace, replicas=3)))
    service = ClusterService(cluster, namespace, "digits")
    await_ready(service)
    addresses = pod_addresses(service)
    with Load(place(cluster, namespace), key=OTHER_KEY) as load:
        began_s = time.monotonic()
        service.regenerate_key("primary", NEW_KEY)
        returned_s = time.monotonic() - began_s
        eventually(
            lambda: all(status_with(address, KEY) == 401 for address in addresses),
            "no pod takes the old key",
            within_s=PATIENCE_S,
        )
        gone_s = time.monotonic() - began_s
        load.await_answers(200)
    record("keys", load, f"returned after {returned_s:.1f} s, old key gone after {gone_s:.1f} s")
    assert load.ledger.broken() == []
    assert [status_with(address, NEW_KEY) for address in addresses] == [200] * 3
    # The same pods, and the same Secret for a plan that is applied again.
    list(apply(cluster, digits(namespace, replicas=3, primary_key=None, secondary_key=None)))
    assert pod_addresses(service) == addresses
    assert service.keys().primary == NEW_KEY
