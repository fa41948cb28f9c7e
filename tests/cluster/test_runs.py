"""The engine of Kubernetes clusters keeps every promise of an engine, by the API server, controllers and scheduler.

The simulated nodes run the pods' commands as processes of this machine.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import Behaviour
from tests.targets.conftest import Bench
from tests.targets.test_conformance import *  # noqa: F403

from stoker.settings.workspace import Workspace
from stoker_runs.targets.definitions import Target
from stoker_runs.targets.engine import EngineFailure, Job, Presence
from stoker_runs.targets.kubernetes.engine import KubernetesEngine
from stoker_runs.targets.registry import engine_of

IMAGE = "registry.example/of-runs:1"
SETTINGS = {"context": "test", "image": IMAGE, "claim": "of-runs", "python": sys.executable}
WAITS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
MakeBench = Callable[..., Bench]


@pytest.fixture(scope="module")
def kubernetes(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """The control plane, with a claim for the workspaces, and nodes that run the commands of pods of runs."""
    folder = tmp_path_factory.mktemp("of-runs")
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}}
    claim = {**common, "volumeName": "of-runs", "resources": {"requests": {"storage": "1Gi"}}}
    for kind, path, spec in (
        ("PersistentVolume", "/api/v1/persistentvolumes", volume),
        ("PersistentVolumeClaim", "/api/v1/namespaces/default/persistentvolumeclaims", claim),
    ):
        control_plane.create(
            path, {"apiVersion": "v1", "kind": kind, "metadata": {"name": "of-runs"}, "spec": spec}
        )
    control_plane.nodes.behaviours[IMAGE] = Behaviour(runs=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
        yield control_plane


@pytest.fixture
def make_bench(kubernetes: ControlPlane, tmp_path: Path) -> MakeBench:
    del kubernetes
    workspace = Workspace(tmp_path / "workspace").create()

    def make(**settings: Any) -> Bench:
        target = Target("k8s", "kubernetes", {**SETTINGS, **settings})
        return Bench(workspace, lambda place: engine_of(target, place))

    return make


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench()


def pods_of(plane: ControlPlane, namespace: str = "default") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.get(
        f"/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/name=stoker-run"
    )["items"]
    return found


def no_jobs(plane: ControlPlane) -> None:
    plane.eventually("/apis/batch/v1/namespaces/default/jobs", lambda found: not found["items"])


def test_state_from_before_a_job_is_not_used_after_its_creation(
    bench: Bench, kubernetes: ControlPlane, tmp_path: Path
) -> None:
    """A pod may start before the next query, so an older state does not count."""
    job, engine = bench.job(WAITS, tmp_path), bench.engine
    assert isinstance(engine, KubernetesEngine)
    engine.elapsed_s = lambda: 0.0
    engine.prepare(job, lambda _: None)
    # As when a runner was killed here: the attempt was handed out, and has no Job.
    (engine.worker_folder(job)).mkdir(parents=True)
    (engine.worker_folder(job) / "next").touch()
    assert engine.observe(job).presence is Presence.ABSENT
    engine.start(job)
    bench.wait_for_output(job, "begun")
    (job.place / "agent.json").unlink()
    assert engine.observe(job).presence is Presence.PENDING
    engine.stop(job, 0.0, "canceled")
    engine.clean(job)
    no_jobs(kubernetes)


def test_killed_pod_ends_its_run_with_the_reason(
    bench: Bench, kubernetes: ControlPlane, tmp_path: Path
) -> None:
    """The reason is the cluster's, and no process of the script is left."""
    job = bench.job("import os\nprint(os.getpid(), flush=True)\n" + WAITS, tmp_path)
    bench.start(job)
    bench.wait_for_output(job, "begun")
    (pod,) = pods_of(kubernetes)
    kubernetes.nodes.kill("default", pod["metadata"]["name"])
    # One engine, which measures how long nothing was heard.
    engine = bench.engine
    until_s = time.monotonic() + 120.0
    while (seen := engine.observe(job)).presence is not Presence.GONE:
        assert time.monotonic() < until_s, seen
        time.sleep(0.2)
    assert "the pod was killed, out of memory" in seen.reason
    script = int(bench.log(job.folder).split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(script, 0)
    bench.engine.pull(job, final=True)
    bench.engine.clean(job)
    no_jobs(kubernetes)


def test_run_that_waits_for_a_node_has_the_scheduler_s_reason(bench: Bench, tmp_path: Path) -> None:
    """A waiting run shows the scheduler's reason, and cancelling it leaves no Job."""
    job = bench.job(WAITS, tmp_path, gpus=9)
    bench.start(job)
    seen = bench.wait_until(job, lambda state: "Insufficient nvidia.com/gpu" in state.reason)
    assert seen.presence is Presence.PENDING
    bench.engine.stop(job, 1.0, "canceled")
    seen = bench.wait_until(job, lambda state: state.presence is Presence.GONE)
    assert seen.reason == "canceled"
    bench.engine.clean(job)


def test_nodes_of_a_run_are_different_ones(bench: Bench, kubernetes: ControlPlane, tmp_path: Path) -> None:
    """And the scheduler's view of a run is deleted with the attempt."""
    job = bench.job(WAITS, tmp_path, nodes=3)
    bench.start(job)
    bench.wait_for_output(job, "begun")
    nodes = [
        pod["spec"]["nodeName"] for pod in pods_of(kubernetes) if not pod["metadata"].get("deletionTimestamp")
    ]
    assert len(nodes) == len(set(nodes)) == 3
    bench.engine.stop(job, 1.0, "canceled")
    assert bench.finish(job).exit["reason"] == "canceled"
    no_jobs(kubernetes)


def test_pods_that_cannot_begin_say_why(
    make_bench: MakeBench, kubernetes: ControlPlane, tmp_path: Path
) -> None:
    """The error has the last line of the pod's log, and the setting that the target's file lacks."""
    engine = make_bench(python="/bin/false").engine
    with pytest.raises(
        EngineFailure, match=r"could not begin with .*: the pod ended with status 1; the claim"
    ):
        engine.check()
    no_jobs(kubernetes)
    broken = make_bench(python="/usr/bin/env")
    job = broken.job(WAITS, tmp_path)
    broken.engine.prepare(job, lambda _: None)
    broken.engine.start(job)
    broken.wait_until(job, lambda state: state.presence is Presence.ABSENT)
    with pytest.raises(EngineFailure, match=r"could not begin"):
        broken.engine.start(job)
    broken.engine.clean(job)


def test_a_workspace_of_a_user_satisfies_the_restricted_profile(
    make_bench: MakeBench, namespace: str, kubernetes: ControlPlane, tmp_path: Path
) -> None:
    """Its pods run as the workspace's owner."""
    bench = make_bench(namespace=namespace)
    os.chown(bench.workspace.root, 10001, 10001)
    job: Job = bench.job(WAITS, tmp_path)
    bench.start(job)
    kubernetes.eventually(
        f"/api/v1/namespaces/{namespace}/pods",
        lambda found: [pod["spec"]["securityContext"]["runAsUser"] for pod in found["items"]] == [10001],
    )
    assert isinstance(bench.engine, KubernetesEngine)
    bench.engine.stop(job, 0.0, "canceled")
    bench.engine.clean(job)
