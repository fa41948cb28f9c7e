"""Runs on real nodes of Ray: nodes that are killed, and a sweep on them."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.live_server import marked_processes, wait_until
from tests.ray.conftest import Cluster, kill_node
from tests.ray.test_runs_conformance import settings_of

from stoker.settings.workspace import Workspace
from stoker_run.processes import descendants
from stoker_runs.launch.submission import Request, submit
from stoker_runs.records.folder import RunFolder, log_file
from stoker_runs.records.record import Definition
from stoker_runs.records.states import RunState, Status
from stoker_runs.targets.attaching import create

_WAIT_S = 300
BIG = 16
"""Cores that only nodes have that are there to be killed."""

EPOCHS = """
import json, os, time
from pathlib import Path
checkpoint = Path("outputs", "epoch.json")
begin = json.loads(checkpoint.read_text()) if os.environ.get("STOKER_RESUME_FROM") else 0
for epoch in range(begin, 6):
    print("epoch", epoch, flush=True)
    time.sleep(0.5 if os.environ["STOKER_ATTEMPT"] == "2" or epoch < 3 else 300)
    written = checkpoint.with_suffix(".new")
    written.write_text(json.dumps(epoch + 1))
    written.replace(checkpoint)
"""


@pytest.fixture
def nodes(ray_cluster: Cluster) -> list[subprocess.Popen[bytes]]:
    """Two nodes that are there to be killed."""
    return [ray_cluster.add_node(f"--num-cpus={BIG}") for _ in range(2)]


@pytest.fixture
def workspace(ray_cluster: Cluster, tmp_path: Path) -> Workspace:
    found = Workspace(tmp_path / "workspace").create()
    content = {"type": "ray", **settings_of(ray_cluster), "max_nodes": 4}
    create(found, "big", content, {"token": ray_cluster.token}, None)
    return found


def submitted(workspace: Workspace, script: str, tmp_path: Path, **asked: object) -> RunFolder:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text(script)
    definition = Definition("train.py", target="big", **asked)  # type: ignore[arg-type]
    return submit(Request(definition, source), workspace)[0]


def ended(run: RunFolder) -> RunState:
    wait_until(lambda: run.state().is_terminal, f"{run.id} ends", timeout_s=_WAIT_S, every_s=0.2)
    return run.state()


def test_a_run_goes_on_from_its_checkpoint_on_another_node(
    workspace: Workspace, tmp_path: Path, nodes: list[subprocess.Popen[bytes]]
) -> None:
    """When the raylet is killed, its script dies, the log is whole, and no epoch is done twice."""
    run = submitted(workspace, EPOCHS, tmp_path, attempts=2, cores=BIG)
    first = log_file(run, 1)
    wait_until(lambda: first.exists() and "epoch 3" in first.read_text(), "epoch 3", timeout_s=_WAIT_S)
    worker = Path(json.loads((run.attempt(1) / "placement.json").read_bytes())["worker"])
    pid = json.loads((worker / "worker.json").read_bytes())["pid"]
    kill_node(next(node for node in nodes if pid in descendants(node.pid)))
    state = ended(run)
    assert (state.status, state.attempt) == (Status.COMPLETED, 2)
    assert first.read_text() == "".join(f"epoch {number}\n" for number in range(4))
    assert log_file(run, 2).read_text() == "".join(f"epoch {number}\n" for number in range(3, 6))
    lost = json.loads((run.attempt(1) / "lost.json").read_bytes())
    assert lost == {"reason": "the daemon of its node has ended"}
    assert [pid for pid, _ in marked_processes(f"STOKER_RUN_ID={run.id}")] == []


def test_a_script_that_ignores_sigterm_is_cancelled(workspace: Workspace, tmp_path: Path) -> None:
    """It and its grandchildren are gone after the grace."""
    script = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True)\n"
        "print('ready', flush=True)\ntime.sleep(300)\n"
    )
    run = submitted(workspace, script, tmp_path, grace_s=1.0)
    log = log_file(run, 1)
    wait_until(lambda: log.exists() and "ready" in log.read_text(), "the script begins", timeout_s=_WAIT_S)
    run.request_cancel("", 1)
    assert ended(run).status is Status.CANCELED
    assert [pid for pid, _ in marked_processes(f"STOKER_RUN_ID={run.id}")] == []
