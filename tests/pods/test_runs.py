"""Runs in real pods: they mount the workspace with their files, and a killed pod ends its run with the reason."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.patience import PROGRAM_S
from tests.pods.node import Node
from tests.targets.conftest import Bench

from stoker.settings.workspace import Workspace
from stoker_runs.targets.definitions import Target
from stoker_runs.targets.engine import Presence
from stoker_runs.targets.registry import engine_of

CLAIM = "of-runs"
WAITS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
WRITES = """
import os
from azureml.core import Run
run = Run.get_context()
run.log("accuracy", 0.5)
os.makedirs("outputs", exist_ok=True)
with open("outputs/seen.txt", "w") as file:
    file.write(os.uname().nodename)
"""


@pytest.fixture
def bench(plane: ControlPlane, machine: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Runs in the namespace `default`, whose pods run as the owner of the workspace, the user of these tests."""
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    folder = machine.folder / CLAIM
    folder.mkdir(exist_ok=True)
    common: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": "of-runs"}
    volume = {**common, "capacity": {"storage": "1G"}, "hostPath": {"path": str(folder)}}
    claim = {**common, "resources": {"requests": {"storage": "1G"}}}
    paths = ("/api/v1/persistentvolumes", "/api/v1/namespaces/default/persistentvolumeclaims")
    kinds = ("PersistentVolume", "PersistentVolumeClaim")
    for path, kind, spec in zip(paths, kinds, (volume, claim), strict=True):
        plane.create(path, {"apiVersion": "v1", "kind": kind, "metadata": {"name": CLAIM}, "spec": spec})
    settings = {
        "image": "docker.io/library/stoker:2",
        "claim": CLAIM,
        "mount_path": str(folder),
        "python": str(Path(sys.prefix) / "bin/python"),
    }
    target = Target("k8s", "kubernetes", settings)
    workspace = Workspace(folder / "workspace").create()
    yield Bench(workspace, lambda place: engine_of(target, place))
    for path in reversed(paths):
        plane.api.delete(f"{path}/{CLAIM}")


def test_runs_in_pods(bench: Bench, tmp_path: Path) -> None:
    """One writes its files, one is killed with all its processes, and one waits for a second node."""
    assert bench.engine.check()[0].startswith("Python 3.")
    job = bench.job(WRITES, tmp_path)
    bench.start(job)
    assert bench.finish(job).exit["outcome"] == "exited"
    assert (job.folder.path / "outputs/seen.txt").read_text().startswith("stoker-")
    assert '"accuracy"' in (job.place / "metrics.jsonl").read_text()

    job = bench.job(WAITS, tmp_path)
    bench.start(job)
    bench.wait_for_output(job, "begun")
    # The agent is a fork of the worker.
    worker = min(
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"\0work\0" in path.read_bytes() and job.record.id.replace("_", "-").encode() in path.read_bytes()
    )
    os.kill(worker, signal.SIGKILL)
    engine, until_s = bench.engine, time.monotonic() + PROGRAM_S
    while (seen := engine.observe(job)).presence is not Presence.GONE:
        assert time.monotonic() < until_s, seen
        time.sleep(0.2)
    assert "the pod ended with status 137" in seen.reason
    engine.clean(job)

    job = bench.job(WAITS, tmp_path, nodes=2)
    bench.start(job)
    bench.wait_until(job, lambda state: "anti-affinity" in state.reason)
    bench.engine.stop(job, 0.0, "canceled")
    bench.engine.clean(job)
