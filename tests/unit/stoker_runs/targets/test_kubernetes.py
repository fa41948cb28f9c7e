"""Kubernetes clusters as targets: what their files may say, what runs take of them, what objects say of a run."""

from pathlib import Path
from typing import Any

import pytest

from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace
from stoker_runs.errors import SubmissionRefused
from stoker_runs.launch.inputs import check_inputs
from stoker_runs.launch.submission import Request, plan
from stoker_runs.records.record import Definition
from stoker_runs.targets.definitions import Target, find_target
from stoker_runs.targets.kubernetes.jobs import JobState, job_object, state_of

CONTENT = "type: kubernetes\nimage: train:1\nclaim: shared\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "ws").create()


def make_target(workspace: Workspace, content: str) -> Target:
    workspace.targets_dir.mkdir(exist_ok=True)
    (workspace.targets_dir / "k8s.yaml").write_text(content)
    return find_target(workspace.targets_dir, "k8s")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("type: kubernetes\nclaim: shared\n", "image is missing"),
        ("type: kubernetes\nimage: train:1\n", "claim is missing"),
        (CONTENT + "mount_path: shared\n", "mount_path must be an absolute path"),
        (CONTENT + "memory: much\n", "memory must be a size"),
        (CONTENT + "namespace: 7\n", "namespace must be a text, got 7"),
        (CONTENT + "address: x\n", "there is no setting 'address'"),
    ],
)
def test_invalid_kubernetes_target_is_refused(workspace: Workspace, content: str, message: str) -> None:
    """The error names the key and its valid values."""
    with pytest.raises(InvalidSettings, match=message):
        make_target(workspace, content)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environment": "conda.yml"}, "have the packages of their image"),
        ({"dockerfile": "Dockerfile"}, "builds no images"),
        ({"mount_path": "/elsewhere"}, "is not in /elsewhere, which the pods of k8s mount"),
    ],
)
def test_request_that_pods_cannot_serve_is_refused(
    workspace: Workspace, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    """The request is refused before a run is created, with what to do instead."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a.py", "Dockerfile"):
        (source / name).write_text("")
    (source / "conda.yml").write_text("dependencies:\n  - python=3.11\n")
    mount_path = options.pop("mount_path", str(tmp_path))
    make_target(workspace, f"{CONTENT}mount_path: {mount_path}\n")
    given: dict[str, Any] = dict(options)
    for name in ("environment", "dockerfile"):
        if name in given:
            given[name] = source / given[name] if name == "dockerfile" else str(source / given[name])
    with pytest.raises(SubmissionRefused, match=message):
        plan(Request(Definition("a.py", target="k8s"), source, **given), workspace)


def test_data_has_to_be_where_pods_see_it(workspace: Workspace, tmp_path: Path) -> None:
    """Another folder of the same file system is not mounted."""
    target = make_target(workspace, CONTENT)
    inside, beside = workspace.root / "data", tmp_path / "data"
    for folder in (inside, beside):
        folder.mkdir()
    check_inputs({"d": str(inside)}, target, workspace)
    with pytest.raises(SubmissionRefused, match="which the nodes of k8s may not see"):
        check_inputs({"d": str(beside)}, target, workspace)


def test_a_run_may_name_an_image(workspace: Workspace) -> None:
    """Sizes are in Kubernetes' units; a pod requests the run's."""
    definition = Definition("a.py", cores=2, gpus=1, container={"image": "mine:2"})
    target = make_target(workspace, CONTENT + "memory: 16g\n")
    pod = job_object("r", "ns", target, ["python3"], workspace.root, definition)["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "mine:2"
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "2", "memory": "16Gi"},
        "limits": {"memory": "16Gi", "nvidia.com/gpu": "1"},
    }
    assert pod["volumes"][1]["emptyDir"]["sizeLimit"] == "2Gi"


def pod_status(phase: str, **status: Any) -> dict[str, Any]:
    return {"status": {"phase": phase, **status}}


def container_state(**state: Any) -> list[dict[str, Any]]:
    return [{"state": state}]


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
FAILED = {"status": {"conditions": [{"type": "Failed", "status": "True", "message": "backoff limit"}]}}
ENDING = {"status": {"conditions": [{"type": "FailureTarget", "status": "True", "message": "backoff limit"}]}}


@pytest.mark.parametrize(
    ("job", "pods", "state"),
    [
        ({}, [], JobState(False, "no pod has been created; kubectl describe says why")),
        ({}, [pod_status("Pending", conditions=[UNSCHEDULABLE])], JobState(False, "0/3 nodes")),
        (
            {},
            [
                pod_status("Running"),
                pod_status(
                    "Pending",
                    containerStatuses=container_state(
                        waiting={"reason": "ErrImagePull", "message": "no such image"}
                    ),
                ),
            ],
            JobState(False, "ErrImagePull: no such image"),
        ),
        ({}, [pod_status("Running")], JobState(False)),
        # Its pods are still being ended.
        (ENDING, [pod_status("Running")], JobState(False)),
        (
            FAILED,
            [pod_status("Failed", containerStatuses=container_state(terminated={"reason": "OOMKilled"}))],
            JobState(True, "the pod was killed, out of memory"),
        ),
        (
            FAILED,
            [pod_status("Failed", reason="Evicted", message="The node was low on memory.")],
            JobState(True, "Evicted The node was low on memory."),
        ),
        (FAILED, [], JobState(True, "backoff limit")),
        ({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}, [], JobState(True, "")),
    ],
)
def test_state_of_a_job_follows_from_its_objects(
    job: dict[str, Any], pods: list[dict[str, Any]], state: JobState
) -> None:
    """The Job and its pods give the state of the attempt."""
    assert state_of(job, pods) == state
