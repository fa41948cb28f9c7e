"""`stoker autoscale` and an HPA against a real control plane; the test sets the loads of pods."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.clock import Clock
from tests.cluster.control_plane import ControlPlane, running
from tests.cluster.nodes import Behaviour
from tests.cluster.plans import digits
from tests.cluster.pod_times import pod_times
from tests.live_server import wait_until

from stoker_cluster.access import Cluster
from stoker_cluster.applying import apply
from stoker_cluster.autoscaler import Autoscaler
from stoker_cluster.errors import ClusterError, ClusterRefusal
from stoker_cluster.scale_access import ClusterDeployment
from stoker_cluster.scaling import PodLoad

NODES = 1000


class Shared:
    """Pods that share the load of all."""

    def __init__(self) -> None:
        self.load = 0.0
        self.clock_s: Callable[[], float] = time.monotonic

    async def read(self, addresses: Mapping[str, str]) -> Mapping[str, PodLoad]:
        now_s = self.clock_s()
        share = self.load / max(1, len(addresses))
        return {name: PodLoad(share, 0, now_s) for name in addresses}


def until(
    control_plane: ControlPlane, namespace: str, wanted: int, ready: int, within_s: float = 240.0
) -> None:
    """Wait until so many pods are wanted and ready."""
    control_plane.eventually(
        f"/apis/apps/v1/namespaces/{namespace}/deployments/digits",
        lambda found: (found["spec"]["replicas"], found["status"].get("readyReplicas", 0)) == (wanted, ready),
        within_s,
    )


@contextmanager
def scaling(cluster: Cluster, namespace: str, pods: Shared) -> Iterator[None]:
    """An autoscaler on a thread of its own."""
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()
    deployment = ClusterDeployment(cluster, "digits", namespace)
    own = Autoscaler("digits", deployment, pods)
    thread = threading.Thread(target=lambda: loop.run_until_complete(own.run(stopped)))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()


@pytest.fixture
def own_cluster(
    cluster: Cluster,
    control_plane: ControlPlane,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Cluster:
    """The cluster with the rights of the autoscaler's account and no others."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/digits-autoscaler/token"
    list(apply(cluster, scaled(namespace)))
    token_request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = control_plane.create(path, token_request)["status"]["token"]
    _await_rights(control_plane, namespace, token)
    config = control_plane.kubeconfig.read_text(encoding="utf-8").replace("of-the-administrator", token)
    file = tmp_path / "kubeconfig"
    file.write_text(config, encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(file))
    return Cluster.connect("test")


def _await_rights(control_plane: ControlPlane, namespace: str, token: str) -> None:
    """The API server hears of rights a moment after it has taken them."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/digits"
    headers = {"Authorization": f"Bearer {token}"}
    wait_until(
        lambda: control_plane.api.get(path, headers=headers).is_success,
        "the account may look at its Deployment",
        timeout_s=60,
        every_s=0.05,
    )


def scaled(namespace: str, **fields: Any) -> Any:
    return digits(namespace, autoscaler="stoker", **{"max_replicas": 20, **fields})


def test_a_step_of_load_is_followed_with_the_rights_of_its_account(
    own_cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    """From one pod to eight on eight GPUs."""
    pods = Shared()
    until(control_plane, namespace, 1, 1)
    with scaling(own_cluster, namespace, pods):
        pods.load = 5.6
        begun_s = time.monotonic()
        control_plane.eventually(
            f"/apis/apps/v1/namespaces/{namespace}/deployments/digits",
            lambda found: found["spec"]["replicas"] == 8,
            240.0,
        )
        print(f"8 pods are wanted after {time.monotonic() - begun_s:.1f} s")
        until(control_plane, namespace, 8, 8)


def test_its_account_may_do_nothing_else(own_cluster: Cluster, namespace: str) -> None:
    """Not to its own Deployment, and not to anything else of the namespace."""
    deployment = ClusterDeployment(own_cluster, "digits", namespace)
    assert deployment.read_state().replicas == 1
    others = ClusterDeployment(own_cluster, "digits-autoscaler", namespace)
    for refused in (others.read_state, lambda: own_cluster.list("v1", "Secret", namespace)):
        with pytest.raises(ClusterRefusal) as refusal:
            refused()
        assert refusal.value.http_status == 403


def test_command_of_the_pod_runs_with_the_rights_of_its_account(
    own_cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    """As the Deployment has it, with the rights of the account; pods that nobody reaches stay as many as they are."""
    own = ClusterDeployment(own_cluster, "digits", namespace)
    until(control_plane, namespace, 1, 1)
    spec = own_cluster_pod(control_plane, namespace)["containers"][0]
    command = [str(Path(sys.executable).with_name("stoker")), *spec["command"][1:], *spec["args"]]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        heartbeat = Path("/tmp/heartbeat")
        begun_s = time.time()
        wait_until(
            lambda: heartbeat.exists() and heartbeat.stat().st_mtime > begun_s - 1, "a look at the cluster"
        )
        process.terminate()
        assert process.wait(30) == 0
        assert "the number of pods stays as it is" not in process.stderr.read()
    assert own.read_state().replicas == 1


def own_cluster_pod(control_plane: ControlPlane, namespace: str) -> dict[str, Any]:
    """The pod spec of the autoscaler's Deployment."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/digits-autoscaler"
    spec: dict[str, Any] = control_plane.get(path)["spec"]["template"]["spec"]
    return spec


def test_pods_that_are_marked_go_first(cluster: Cluster, control_plane: ControlPlane, namespace: str) -> None:
    """Of eight that are ready those two which the autoscaler has marked; and a mark is taken away again."""
    list(apply(cluster, scaled(namespace)))
    deployment = ClusterDeployment(cluster, "digits", namespace)
    assert deployment.scale(8, 1)
    until(control_plane, namespace, 8, 8)
    # Addresses are of endpoints, which follow the pods.
    wait_until(lambda: len(deployment.read_state().addresses) == 8, "all pods have addresses")
    names = sorted(deployment.read_state().addresses)
    deployment.mark([names[1], names[3], names[6]], [])
    deployment.mark([], [names[3]])
    assert not deployment.scale(6, 7), "somebody else has changed it"
    assert deployment.scale(6, 8)
    control_plane.eventually(
        f"/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/name=stoker",
        lambda found: (
            {pod["metadata"]["name"] for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]}
            == set(names) - {names[1], names[6]}
        ),
    )


def test_lost_api_server_keeps_the_number_of_pods(cluster: Cluster, namespace: str) -> None:
    """The autoscaler logs the loss and goes on."""
    list(apply(cluster, scaled(namespace)))
    deployment = ClusterDeployment(cluster, "digits", namespace)
    looked = deployment.read_state

    def lose_api_server() -> Any:
        raise ClusterError("the cluster cannot be asked")

    pods = Shared()
    own = Autoscaler("digits", deployment, pods)
    asyncio.run(own.step())
    pods.load = 14.0
    deployment.read_state = lose_api_server  # type: ignore[method-assign]
    asyncio.run(own.step())
    assert looked().replicas == 1


def test_an_hpa_is_taken_as_it_is_rendered(
    cluster: Cluster, control_plane: ControlPlane, namespace: str, warnings: list[str]
) -> None:
    """Nothing is warned of, and the controller finds the Deployment; what serves its metric is not there."""
    list(apply(cluster, digits(namespace, autoscaler="hpa", max_replicas=20, target_utilization=50)))
    found = control_plane.eventually(
        f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers/digits",
        lambda found: found.get("status", {}).get("conditions"),
    )
    metric = found["spec"]["metrics"][0]["pods"]
    assert (metric["metric"]["name"], metric["target"]["averageValue"]) == ("stoker_load", "500m")
    able = {one["type"]: one["status"] for one in found["status"]["conditions"]}
    assert able["AbleToScale"] == "True"
    assert warnings == []


@pytest.fixture(scope="module")
def thousand(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with a thousand simulated nodes of one GPU each, whose pods are ready after 1.5 s."""
    del control_plane
    with running(tmp_path_factory.mktemp("thousand")) as plane:
        plane.nodes.usual = Behaviour(start_s=1.5)
        plane.nodes.add(NODES)
        plane.create("/api/v1/namespaces", {"metadata": {"name": "models"}})
        yield plane


def test_a_step_of_load_on_a_thousand_nodes(thousand: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 1 pod to 20 in three looks, and then ten minutes of the same; a minute later back to 1."""
    monkeypatch.setenv("KUBECONFIG", str(thousand.kubeconfig))
    cluster, pods = Cluster.connect("test"), Shared()
    list(apply(cluster, scaled("models", max_replicas=NODES)))
    until(thousand, "models", 1, 1)
    with pod_times(thousand, "models") as times, scaling(cluster, "models", pods):
        pods.load = 14.0
        wanted_s = _follow(thousand, 20)
        until(thousand, "models", 20, 20)
        seen_s = time.monotonic() - wanted_s
    last = max(times.values(), key=lambda one: one["ready"])
    after = ", ".join(f"{name} {time_s - wanted_s:.1f} s" for name, time_s in last.items())
    print(f"the last pod, after 20 were wanted: {after}; counted by its Deployment {seen_s:.1f} s")
    clock = Clock()
    deployment = ClusterDeployment(cluster, "digits", "models")
    own = Autoscaler("digits", deployment, pods, clock_s=clock)
    pods.clock_s = clock
    history = []

    async def look(times: int) -> None:
        for _ in range(times):
            await own.step()
            clock.now_s += 1
            history.append(deployment.read_state().replicas)

    asyncio.run(look(600))
    assert set(history) == {20}
    history.clear()
    pods.load = 0.1
    asyncio.run(look(100))
    assert (history[58], history[59], history[-1]) == (20, 18, 1)
    until(thousand, "models", 1, 1)


def test_a_thousand_pods(thousand: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight looks from 1 to a thousand: those that start are there already."""
    monkeypatch.setenv("KUBECONFIG", str(thousand.kubeconfig))
    cluster, pods = Cluster.connect("test"), Shared()
    list(apply(cluster, scaled("models", max_replicas=NODES)))
    until(thousand, "models", 1, 1)
    with scaling(cluster, "models", pods):
        pods.load = 0.7 * NODES
        _follow(thousand, NODES)


def _follow(thousand: ControlPlane, count: int) -> float:
    """Wait until so many pods are wanted, and return when; what that took is printed (`pytest -rP`)."""
    begun_s = time.monotonic()
    thousand.eventually(
        "/apis/apps/v1/namespaces/models/deployments/digits",
        lambda found: found["spec"]["replicas"] == count,
        240,
    )
    wanted_s = time.monotonic()
    print(f"{count} pods are wanted after {wanted_s - begun_s:.1f} s")
    return wanted_s
