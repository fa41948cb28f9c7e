"""AmlCompute with a Ray cluster bound to its name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.targets.ray_dashboard import RayDashboard

import stoker.azure  # noqa: F401  # provides azureml

# isort: split
from azureml.core import Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.exceptions import ComputeTargetException

from stoker_runs.targets.attaching import attach


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Workspace.from_config()


@pytest.fixture
def dashboard() -> Iterator[RayDashboard]:
    with RayDashboard() as server:
        yield server


def bound(ws: Workspace, dashboard: RayDashboard) -> AmlCompute:
    attach(ws.local, "cpus", {"type": "ray", "address": dashboard.address, "max_nodes": 3}, {}, None)
    configuration = AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes=4)
    cluster = ComputeTarget.create(ws, "cpus", configuration)
    assert type(cluster) is AmlCompute
    return cluster


def test_code_that_creates_the_cluster_finds_the_bound_one(
    ws: Workspace, dashboard: RayDashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its limits stay as they are bound, and nothing says that this machine stands for it."""
    status = bound(ws, dashboard).get_status().serialize()
    assert capsys.readouterr().out == ""
    assert status["scaleSettings"]["maxNodeCount"] == 3
    assert (status["currentNodeCount"], status["targetNodeCount"]) == (1, 1)
    assert (status["nodeStateCounts"]["idleNodeCount"], status["allocationState"]) == (1, "Steady")


def test_nodes_are_counted_in_azures_states(ws: Workspace, dashboard: RayDashboard) -> None:
    """Running where cores are in use, preparing while the autoscaler waits for them."""
    cluster = bound(ws, dashboard)
    job = {"submission_id": "a", "entrypoint": "exec sleep 300", "entrypoint_num_cpus": 1}
    dashboard.answer("POST", "/api/jobs/", job)
    dashboard.pending = 2
    status = cluster.get_status().serialize()
    counts = status["nodeStateCounts"]
    assert (counts["runningNodeCount"], counts["idleNodeCount"], counts["preparingNodeCount"]) == (1, 0, 2)
    assert (status["currentNodeCount"], status["targetNodeCount"], status["allocationState"]) == (
        1,
        3,
        "Resizing",
    )


def test_a_node_that_is_there_is_not_preparing(ws: Workspace, dashboard: RayDashboard) -> None:
    """Though the autoscaler has not noticed it."""
    cluster = bound(ws, dashboard)
    dashboard.active, dashboard.pending = 0, 3
    status = cluster.get_status().serialize()
    assert (status["currentNodeCount"], status["targetNodeCount"]) == (1, 3)


def test_waiting_ends_when_the_nodes_are_there(
    ws: Workspace, dashboard: RayDashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error at the end of the time has their number."""
    cluster = bound(ws, dashboard)
    cluster.wait_for_completion(min_node_count=1, timeout_in_minutes=1)
    assert capsys.readouterr().out == 'Provisioning operation finished, operation "Succeeded"\n'
    cluster.wait_for_completion(min_node_count=2, timeout_in_minutes=0)
    assert (
        "cpus: waited for 2 nodes; the cluster has 0 running, 1 idle, 0 starting" in capsys.readouterr().out
    )


def test_changed_limits_reach_the_cluster(ws: Workspace, dashboard: RayDashboard) -> None:
    """The cluster gets the number of nodes to keep; the target stays bound."""
    bound(ws, dashboard).update(min_nodes=2, idle_seconds_before_scaledown=60)
    (job,) = dashboard.jobs.values()
    assert "request_resources(bundles=[{'CPU': 1}, {'CPU': 1}])" in job.submission["entrypoint"].replace(
        "'\"'\"'", "'"
    )
    again = AmlCompute(ws, "cpus").get_status().serialize()["scaleSettings"]
    assert again == {"minNodeCount": 2, "maxNodeCount": 3, "nodeIdleTimeBeforeScaleDown": "PT60S"}


def test_a_cluster_that_does_not_answer_is_an_error_of_azures(ws: Workspace, dashboard: RayDashboard) -> None:
    """Its message says what to look at."""
    cluster = bound(ws, dashboard)
    dashboard.token = "changed"
    with pytest.raises(ComputeTargetException, match="wants another token"):
        cluster.get_status()
