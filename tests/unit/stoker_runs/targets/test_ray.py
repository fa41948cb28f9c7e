"""Ray clusters as compute targets: what their files may say, and what runs take of them."""

from pathlib import Path

import pytest

from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace
from stoker_runs.errors import SubmissionRefused
from stoker_runs.launch.inputs import check_inputs
from stoker_runs.launch.slots import Allocation, ResourceRequest, choose, slots_of
from stoker_runs.launch.submission import Request, plan
from stoker_runs.records.record import Definition
from stoker_runs.targets.definitions import Capacity, Target, find_target
from stoker_runs.targets.ray.cluster import RayCluster
from stoker_runs.targets.registry import engine_of

CONTENT = "type: ray\naddress: http://head:8265\nmax_nodes: 3\n"


def make_target(tmp_path: Path, content: str) -> Target:
    workspace = Workspace(tmp_path / "ws").create()
    workspace.targets_dir.mkdir(exist_ok=True)
    (workspace.targets_dir / "big.yaml").write_text(content)
    return find_target(workspace.targets_dir, "big")


def test_a_run_has_its_nodes_for_itself_unless_their_cores_are_known(tmp_path: Path) -> None:
    """The pool is counted in nodes, or in cores."""
    whole = make_target(tmp_path, CONTENT)
    nodes = Capacity(3, unit="node", is_cluster=True)
    assert whole.capacity == nodes
    definition = Definition("a.py", cores=2, nodes=2, gpus=1)
    assert ResourceRequest.of(definition, nodes) == ResourceRequest(2, 0)
    shared = make_target(tmp_path, CONTENT + "node_cores: 8\n")
    cores = Capacity(24, is_cluster=True)
    assert shared.capacity == cores
    assert ResourceRequest.of(definition, cores) == ResourceRequest(4, 0)


def test_run_that_waits_for_a_node_says_so(tmp_path: Path) -> None:
    """The reason has the unit of the pool."""
    target = make_target(tmp_path, CONTENT)
    assert slots_of(target, Workspace(tmp_path / "ws")) is not None
    held = [Allocation(f"r{number}", 0, 1) for number in range(3)]
    found = choose(ResourceRequest(1, 0), held, [], Capacity(3, unit="node"))
    assert str(found).startswith("waits for 1 node: held by r0 and 2 more since")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("type: ray\naddress: http://head:8265\n", "max_nodes is missing"),
        (CONTENT + "min_nodes: 4\n", "max_nodes is 3, less than min_nodes, 4"),
        (CONTENT + "node_cores: 0\n", "node_cores must be a whole number between 1 and 1000000, got 0"),
        (CONTENT + "image: x\n", "there is no setting 'image'"),
    ],
)
def test_invalid_ray_target_is_refused(tmp_path: Path, content: str, message: str) -> None:
    """The error names the key and its valid values."""
    with pytest.raises(InvalidSettings, match=message):
        make_target(tmp_path, content)


@pytest.mark.parametrize("address", ["ray://head:10001", "", "ftp://head"])
def test_the_address_is_that_of_the_dashboard(address: str) -> None:
    """Another one is refused with an example."""
    with pytest.raises(InvalidSettings, match=r"such as http://(head|HEAD):8265"):
        RayCluster("big", address)
    assert RayCluster("big", "head:8265").address == "http://head:8265"


def test_more_than_a_node_has_is_refused(tmp_path: Path) -> None:
    """The error has both numbers; GPUs are requested only from nodes that have some."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.py").write_text("")
    workspace = Workspace(tmp_path / "ws").create()
    make_target(tmp_path, CONTENT + "node_cores: 8\nnode_gpus: 2\n")

    def planned(**options: object) -> Definition:
        definition = Definition("a.py", target="big", **options)  # type: ignore[arg-type]
        return plan(Request(definition, source), workspace).definition

    assert planned().gpus == 1
    with pytest.raises(
        SubmissionRefused, match="9 cores of one node were asked for, and the nodes of big have 8"
    ):
        planned(cores=9)
    with pytest.raises(
        SubmissionRefused, match="3 GPUs of one node were asked for, and the nodes of big have 2"
    ):
        planned(gpus=3)
    with pytest.raises(SubmissionRefused, match="4 nodes were asked for, and big has 3"):
        planned(nodes=4)


def test_containers_are_refused(tmp_path: Path) -> None:
    """The image is the cluster's."""
    with pytest.raises(InvalidSettings, match="big starts no containers"):
        make_target(tmp_path, CONTENT).in_containers()


def test_data_lies_where_nodes_see_it(tmp_path: Path) -> None:
    """In the workspace, or on its file system."""
    target = make_target(tmp_path, CONTENT)
    workspace = Workspace(tmp_path / "ws")
    check_inputs({"x": str(workspace.root)}, target, workspace)
    with pytest.raises(
        SubmissionRefused, match="the input x is in /proc/self, which the nodes of big may not see"
    ):
        check_inputs({"x": "/proc/self"}, target, workspace)


def test_others_must_not_read_the_token(tmp_path: Path) -> None:
    """As for every secret."""
    target = make_target(tmp_path, CONTENT)
    workspace = Workspace(tmp_path / "ws")
    secret = workspace.targets_dir / "big.secret"
    secret.write_text('{"token": "x"}')
    secret.chmod(0o644)
    with pytest.raises(InvalidSettings, match="others may read the secrets"):
        engine_of(target, workspace)
