"""A cluster of Azure's code that is bound to a Ray cluster with an autoscaler: no node, three, and none."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live_server import wait_until
from tests.ray.conftest import Cluster, started_cluster

import stoker.azure  # noqa: F401  # provides azureml

# isort: split
from azureml.core import Experiment, ScriptRunConfig, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget

from stoker_runs.records.folder import log_file
from stoker_runs.records.store import RunStore
from stoker_runs.targets.attaching import attach

_WAIT_S = 300
SCRIPT = """
import time
from pathlib import Path
print("begins", flush=True)
while not Path({path!r}).exists():
    time.sleep(0.1)
print("ends", flush=True)
"""


@pytest.fixture(scope="module")
def scaling_cluster() -> Iterator[Cluster]:
    with started_cluster(autoscaling=True) as made:
        yield made


def test_nodes_come_with_runs_and_go_after_them(
    scaling_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five runs three have the nodes, two show their reason to wait; all logs outlive the nodes."""
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    ws = Workspace.from_config()
    content = {"type": "ray", "address": scaling_cluster.dashboard, "max_nodes": 3, "python": sys.executable}
    attach(ws.local, "cpus", {**content, "idle_s": 2}, {"token": scaling_cluster.token}, None)
    configuration = AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes=3)
    cpus = ComputeTarget.create(ws, "cpus", configuration)
    assert type(cpus) is AmlCompute
    assert counts(cpus) == (0, 0, "Steady")

    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text(SCRIPT.format(path=str(tmp_path / "go")))
    config = ScriptRunConfig("source", script="train.py", compute_target=cpus)
    runs = [Experiment(ws, "scaling").submit(config) for _ in range(5)]
    store = RunStore(ws.local.runs_dir)
    folders = [store.get(run.id) for run in runs]
    seen = set()

    def count() -> int:
        seen.add(now := counts(cpus))
        return now[0]

    def with_status(status: str) -> list[str]:
        count()
        states = [folder.state() for folder in folders]
        return [state.reason for state in states if state.status == status]

    wait_until(lambda: len(with_status("Running")) == 3, "three runs", timeout_s=_WAIT_S, every_s=0.3)
    reasons = with_status("Queued")
    assert len(reasons) == 2
    assert all(reason.startswith("waits for 1 node: held by scaling_") for reason in reasons)
    cpus.wait_for_completion(min_node_count=1, timeout_in_minutes=1)
    (tmp_path / "go").touch()
    wait_until(lambda: len(with_status("Completed")) == 5, "five runs end", timeout_s=_WAIT_S, every_s=0.3)
    wait_until(lambda: count() == 0, "no nodes", timeout_s=_WAIT_S, every_s=0.3)
    assert max(current for current, _, _ in seen) == 3
    assert max(target for _, target, _ in seen) == 3
    assert {log_file(folder, 1).read_text() for folder in folders} == {"begins\nends\n"}


def counts(cluster: AmlCompute) -> tuple[int, int, str]:
    """The nodes that are there, those that are to be, and what happens to them."""
    status = cluster.get_status().serialize()
    return status["currentNodeCount"], status["targetNodeCount"], status["allocationState"]
