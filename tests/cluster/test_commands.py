"""`stoker kubernetes` against a real API server: output and exit codes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import Behaviour

from stoker.cli import main
from stoker_cluster.access import Cluster

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def plan(namespace: str) -> list[str]:
    """Options of a plan."""
    return ["digits.onnx", "--image", "stoker:1", "--namespace", namespace, "--gpus", "1"]


def test_a_service_is_applied_looked_after_and_deleted(
    plan: list[str], namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step prints its effect: from nothing to a service that can score, and nothing again."""
    place = ["--namespace", namespace]
    assert main(["kubernetes", "apply", *plan, "--replicas", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-3:] == [
        "created Secret digits-keys",
        "created Deployment digits",
        "created PodDisruptionBudget digits",
    ]
    assert printed.err.splitlines()[-1] == "digits: 2 of 2 pods can score"
    assert main(["kubernetes", "status", "digits", *place]) == 0
    status = capsys.readouterr().out.splitlines()
    assert status[0] == "digits is Healthy: 2 of 2 pods can score"
    assert all(re.fullmatch(r"  digits-\S+  can score  gpu-\d  stoker:1", line) for line in status[1:])
    assert main(["kubernetes", "delete", "digits", *place]) == 0
    assert "deleted Secret digits-keys\n" in capsys.readouterr().out
    assert main(["kubernetes", "status", "digits", *place]) == 1
    assert main(["kubernetes", "delete", "digits", *place]) == 2
    assert "there is no service digits in namespace" in capsys.readouterr().err


def test_apply_prints_the_reason_of_its_wait_and_gives_up_in_time(
    plan: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nine pods on eight GPUs: the scheduler's own sentence is in the line, and the exit code is not 0."""
    assert main(["kubernetes", "apply", *plan, "--replicas", "8"]) == 0
    capsys.readouterr()
    assert main(["kubernetes", "apply", *plan, "--replicas", "9", "--wait-s", "5"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"digits: 8 of 9 pods can score; one waits: Unschedulable: 0/8 nodes are available: "
        r"8 Insufficient nvidia.com/gpu.*",
        lines[-1],
    )


def test_apply_without_a_pod_that_can_start_ends_with_the_reason(
    plan: list[str], control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    """A container that ends again and again is not waited for."""
    control_plane.nodes.behaviours["broken:1"] = Behaviour(waits="CrashLoopBackOff", message="back-off 10s")
    assert main(["kubernetes", "apply", *plan, "--image", "broken:1"]) == 1
    assert capsys.readouterr().err.endswith("digits is Failed: CrashLoopBackOff: back-off 10s\n")


def test_ctrl_c_ends_waiting_and_leaves_the_service(
    plan: list[str], namespace: str, cluster: Cluster, control_plane: ControlPlane
) -> None:
    """One sentence says that it goes on; there is no traceback."""
    control_plane.nodes.behaviours["slow:1"] = Behaviour(start_s=60)
    command = [sys.executable, "-m", "stoker.cli", "kubernetes", "apply", *plan, "--image", "slow:1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        while "1 start" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert rest.strip() == "digits goes on without being waited for; see stoker kubernetes status digits"
    assert process.returncode == 130
    assert control_plane.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/digits") is not None
