"""Runs on real nodes of Ray: nodes that are killed, a sweep on them, and two that train one model."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live_server import marked_processes, wait_until
from tests.ray.conftest import Cluster, kill_node
from tests.ray.test_runs_conformance import settings_of
from tests.targets.test_local_runs import killed_at_moments
from tests.unit.stoker_training.conftest import tiny_mnist  # noqa: F401  # a fixture

from stoker.settings.workspace import Workspace
from stoker_run.processes import descendants
from stoker_runs.launch.following import wait
from stoker_runs.launch.submission import Request, submit
from stoker_runs.records.folder import RunFolder, log_file
from stoker_runs.records.record import Definition
from stoker_runs.records.states import RunState, Status
from stoker_runs.records.store import RunStore
from stoker_runs.targets.attaching import attach
from stoker_runs.tuning.children import child_folders, submit_sweep
from stoker_runs.tuning.definition import define_sweep, expression, sampler

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


CHILDREN = int(os.environ.get("CHILDREN", "40"))
"""How many runs the sweep has."""

NO_OP = """
import os, sys
with open(sys.argv[1], "a") as file:
    file.write(os.environ["STOKER_RUN_ID"] + "\\n")
"""


@pytest.fixture
def nodes(ray_cluster: Cluster) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three nodes that are there to be killed."""
    with contextlib.ExitStack() as made:
        yield [made.enter_context(ray_cluster.node(f"--num-cpus={BIG}")) for _ in range(3)]


def workspace_with(cluster: Cluster, tmp_path: Path, max_nodes: int) -> Workspace:
    """A workspace whose target `big` is the cluster."""
    found = Workspace(tmp_path / "workspace").create()
    content = {"type": "ray", **settings_of(cluster), "max_nodes": max_nodes}
    attach(found, "big", content, {"token": cluster.token}, None)
    return found


@pytest.fixture
def workspace(ray_cluster: Cluster, tmp_path: Path) -> Workspace:
    return workspace_with(ray_cluster, tmp_path, 3)


def submitted(workspace: Workspace, script: str, tmp_path: Path, **options: object) -> RunFolder:
    source = tmp_path / "source"
    source.mkdir(parents=True)
    (source / "train.py").write_text(script)
    definition = Definition("train.py", target="big", **options)  # type: ignore[arg-type]
    return submit(Request(definition, source), workspace)[0]


def wait_for_end(run: RunFolder) -> RunState:
    wait_until(lambda: run.state().is_terminal, f"{run.id} ends", timeout_s=_WAIT_S, every_s=0.2)
    return run.state()


def is_on(run: RunFolder, node: subprocess.Popen[bytes]) -> bool:
    """Whether the first attempt of a run is running on this node."""
    try:
        return json.loads((run.attempt(1) / "agent.json").read_bytes())["pid"] in descendants(node.pid)
    except OSError:
        return False


def test_a_run_goes_on_from_its_checkpoint_on_another_node(
    workspace: Workspace, tmp_path: Path, nodes: list[subprocess.Popen[bytes]]
) -> None:
    """When the raylet is killed, its script dies, the log is whole, and no epoch is done twice."""
    run = submitted(workspace, EPOCHS, tmp_path, attempts=2, cores=BIG)
    first = log_file(run, 1)
    wait_until(lambda: first.exists() and "epoch 3" in first.read_text(), "epoch 3", timeout_s=_WAIT_S)
    kill_node(next(node for node in nodes if is_on(run, node)))
    state = wait_for_end(run)
    assert (state.status, state.attempt) == (Status.COMPLETED, 2)
    assert first.read_text() == "".join(f"epoch {number}\n" for number in range(4))
    assert log_file(run, 2).read_text() == "".join(f"epoch {number}\n" for number in range(3, 6))
    lost = json.loads((run.attempt(1) / "lost.json").read_bytes())
    assert lost == {"reason": "the daemon of its node has ended"}
    reasons = [line["reason"] for line in run.event_lines() if line.get("v") == "Queued"]
    assert "attempt 1 has ended: the daemon of its node has ended" in reasons
    assert [pid for pid, _ in marked_processes(f"STOKER_RUN_ID={run.id}")] == []


def test_the_only_attempt_is_lost_with_its_node(
    workspace: Workspace, tmp_path: Path, ray_cluster: Cluster
) -> None:
    """The run fails, and its error says why."""
    with ray_cluster.node(f"--num-cpus={BIG}") as node:
        script = "import time\nprint('ready', flush=True)\ntime.sleep(300)\n"
        run = submitted(workspace, script, tmp_path, cores=BIG)
        wait_until(lambda: log_file(run, 1).exists(), "the script begins", timeout_s=_WAIT_S)
        wait_until(lambda: run.state().status is Status.RUNNING, "its runner sees it", timeout_s=_WAIT_S)
        kill_node(node)
        state = wait_for_end(run)
    assert state.status is Status.FAILED
    assert state.error is not None
    assert (state.error.code, state.error.message) == ("NodeLost", "the daemon of its node has ended")


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
    assert wait_for_end(run).status is Status.CANCELED
    assert [pid for pid, _ in marked_processes(f"STOKER_RUN_ID={run.id}")] == []


def test_a_killed_runner_is_adopted(workspace: Workspace, tmp_path: Path) -> None:
    """Killed at twenty moments, of its start and of the script: each run comes to its own end, and runs once."""
    script = "import sys, time\nopen('outputs/count', 'a').write('x')\ntime.sleep(0.6)\nsys.exit(int(sys.argv[1]))\n"

    def submit_one(number: int) -> RunFolder:
        return submitted(workspace, script, tmp_path / str(number), arguments=(str(number % 2),))

    for number, run in killed_at_moments(submit_one, workspace, longest_s=2.0):
        state = wait(run, workspace)
        assert state.status is (Status.FAILED if number % 2 else Status.COMPLETED), (number, state)
        assert (run.outputs / "count").read_text() == "x"
        assert run.attempts() == [1]


def test_logs_are_live(workspace: Workspace, tmp_path: Path) -> None:
    """`runs logs -f` prints a line within 5 s, from any node."""
    script = "import time\nfor _ in range(20):\n    print(time.time(), flush=True)\n    time.sleep(0.2)\n"
    run = submitted(workspace, script, tmp_path)
    words = [sys.executable, "-m", "stoker.cli", "runs", "logs", "-f", run.id, "--workspace", workspace.root]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        late_s = [time.time() - float(line) for line in process.stdout]
    print(f"lines came {max(late_s):.2f} s late at most")
    assert len(late_s) == 20
    assert max(late_s) < 5


def test_a_sweep_loses_no_child_with_its_nodes(
    workspace: Workspace, tmp_path: Path, nodes: list[subprocess.Popen[bytes]]
) -> None:
    """Two of three nodes are killed on the way: each child ends once, and few scripts had to begin again."""
    source, began = tmp_path / "source", tmp_path / "began.txt"
    source.mkdir()
    (source / "train.py").write_text(NO_OP)
    definition = Definition("train.py", (str(began),), target="big", attempts=3, cores=BIG)
    grid = sampler("grid", {"--rate": expression("choice", *range(CHILDREN))})
    terms = define_sweep(grid, "acc", "maximize", CHILDREN, 3, None)
    began_s = time.monotonic()
    sweep = submit_sweep(Request(definition, source), terms, workspace)[0]
    store, alive = RunStore(workspace.runs_dir), list(nodes)

    def children() -> list[RunFolder]:
        return list(child_folders(sweep.record(), CHILDREN, store).values())

    for part in (4, 2):
        wait_until(lambda: len(children()) > CHILDREN // part, "children", timeout_s=_WAIT_S, every_s=0.1)  # noqa: B023
        busy = wait_until(
            lambda: next((node for node in alive for run in children()[-3:] if is_on(run, node)), None),
            "a node has a child",
            timeout_s=_WAIT_S,
        )
        alive.remove(busy)
        kill_node(busy)
    wait_until(lambda: sweep.state().is_terminal, "the sweep ends", timeout_s=_WAIT_S + CHILDREN, every_s=0.5)
    took_s = time.monotonic() - began_s
    print(f"{CHILDREN} children in {took_s:.1f} s: {CHILDREN / took_s:.1f} a second")
    states = {run.id: run.state() for run in children()}
    assert sweep.state().status is Status.COMPLETED
    assert Counter(state.status for state in states.values()) == {Status.COMPLETED: CHILDREN}
    begun = Counter(began.read_text().splitlines())
    assert set(begun) == set(states)
    assert all(count <= states[run].attempt for run, count in begun.items())
    assert sum(state.attempt - 1 for state in states.values()) <= 4


def test_two_nodes_train_one_model(
    workspace: Workspace,
    tiny_mnist: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """`stoker train mnist --nodes 2`: each node has a worker, both end with the same weights."""
    output = tmp_path / "outputs"
    command = [sys.executable, "-m", "stoker.cli", "train", "mnist", "--network", "softmax", "--epochs", "4"]
    command += ["--gpus", "0", "--nodes", "2", "--target", "big"]
    trained = subprocess.run(
        [*command, "--data", tiny_mnist, "--output", output, "--workspace", workspace.root],
        capture_output=True, text=True, check=False, timeout=_WAIT_S, cwd=tmp_path,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stdout + trained.stderr
    attempt = next(workspace.runs_dir.glob("mnist/mnist_*")) / "attempts" / "1"
    logs = [(attempt / f"log_{rank}.txt").read_text() for rank in range(2)]
    weights = [[line for line in log.splitlines() if "have the same weights" in line] for log in logs]
    assert weights[0] == weights[1] != []
    assert "Test accuracy 100.00%" in logs[0]
    assert (attempt / "node_1" / "exit.json").exists()
    assert (output / "saved_model").is_dir()
