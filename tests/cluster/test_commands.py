"""`stoker kubernetes` against a real API server: output and exit codes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

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
    plan: list[str], namespace: str, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step prints its effect: from nothing to a service that can score, its logs, and nothing again."""
    control_plane.nodes.behaviours["stoker:1"] = Behaviour(log="one\ntwo\n")
    place = ["--namespace", namespace]
    assert main(["kubernetes", "diff", *plan]) == 1
    assert "+kind: Deployment\n" in capsys.readouterr().out
    assert main(["kubernetes", "apply", *plan, "--replicas", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-3:] == [
        "created Secret digits-keys",
        "created Deployment digits",
        "created PodDisruptionBudget digits",
    ]
    assert printed.err.splitlines()[-1] == "digits: 2 of 2 pods can score"
    assert main(["kubernetes", "diff", *plan, "--replicas", "2"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["kubernetes", "diff", *plan, "--replicas", "3"]) == 1
    assert "-  replicas: 2\n+  replicas: 3\n" in capsys.readouterr().out
    assert main(["kubernetes", "status", "digits", *place]) == 0
    status = capsys.readouterr().out.splitlines()
    assert status[0] == "digits is Healthy: 2 of 2 pods can score"
    assert all(re.fullmatch(r"  digits-\S+  can score  gpu-\d  stoker:1", line) for line in status[1:])
    assert main(["kubernetes", "logs", "digits", *place, "--lines", "1"]) == 0
    assert re.fullmatch(r"(digits-\S+  two\n){2}", capsys.readouterr().out)
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


def test_check_lists_the_cluster(namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the release, GPUs by machine type, missing operators, the namespace's profile and the rights."""
    assert main(["kubernetes", "check", "--namespace", namespace]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"test is Kubernetes v1\.\d+\.\d+", lines[0])
    assert "Standard_NC6: 8 nvidia.com/gpu" in lines
    assert "KEDA (--autoscaler keda): no, it has no ScaledObject" in lines
    assert "dynamic resource allocation (--dra): yes" in lines
    assert f"namespace {namespace}: enforces the profile restricted" in lines
    assert lines[-1] == "the account may do what apply does"


def test_check_lists_missing_rights(
    namespace: str, control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users see them before `apply` would fail in the middle."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    control_plane.create(accounts, {"metadata": {"name": "nobody"}})
    token = control_plane.create(f"{accounts}/nobody/token", {"spec": {}})["status"]["token"]
    text = control_plane.kubeconfig.read_text().replace("token: of-the-administrator", f"token: {token}")
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    ended = subprocess.run(
        [sys.executable, "-m", "stoker.cli", "kubernetes", "check", "--namespace", namespace],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = ended.stdout.splitlines()
    assert "GPUs: the account may not list nodes" in lines
    assert lines[-1].startswith("the account may not: configmaps patch, services patch, deployments patch")
