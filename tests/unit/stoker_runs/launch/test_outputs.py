"""Runs write into data stores: every kind of target writes into the store or has its files copied there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.puppet_engine import Machine, PuppetEngine, exited
from tests.unit.stoker_runs.launch.conftest import World, at_once

from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace
from stoker_runs.errors import SubmissionRefused
from stoker_runs.launch.inputs import check_inputs
from stoker_runs.launch.outputs import folder_of_script, plan_outputs, read_output, store_outputs
from stoker_runs.launch.runner_process import Runner
from stoker_runs.launch.stores import register_store, unregister_store
from stoker_runs.launch.submission import Request, plan
from stoker_runs.records.record import Definition, Output
from stoker_runs.records.states import FailureCode, Status
from stoker_runs.targets.definitions import AMLCOMPUTE, LOCAL, Target, attachable

COPIED = "outputs/out"
# The places to which a script on each kind of target writes: in the default store, in a folder of this machine that
# is a store too, and in a store at an address.
PLACES = {
    LOCAL: ("default", "disk", COPIED),
    AMLCOMPUTE: ("default", "disk", COPIED),
    "docker": ("default", COPIED, COPIED),
    "kubernetes": ("default", COPIED, COPIED),
    "ray": ("default", COPIED, COPIED),
    "ssh": (COPIED, COPIED, COPIED),
    "spark": (COPIED, COPIED, COPIED),
}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A workspace with a store that is a folder elsewhere, and one at an address."""
    workspace = Workspace(tmp_path / "workspace").create()
    (tmp_path / "disk").mkdir()
    register_store(workspace, "disk", str(tmp_path / "disk"))
    register_store(workspace, "far", f"file://{tmp_path}/far")
    return workspace


@pytest.mark.parametrize("kind", sorted({LOCAL, AMLCOMPUTE, *attachable()}))
def test_every_target_takes_inputs_and_outputs_of_every_mode(
    workspace: Workspace, tmp_path: Path, kind: str
) -> None:
    """It writes to a visible store, else to a folder that comes back; uploads always come back."""
    target = Target("there", kind, {"max_nodes": 1})
    roots = {"default": workspace.root / "stores" / "workspaceblobstore", "disk": tmp_path / "disk"}
    for store, place in zip(("workspaceblobstore", "disk", "far"), PLACES[kind], strict=True):
        mounted = plan_outputs(Definition("t.py", outputs={"out": Output(store, "a/b")}), target, workspace)
        expected = str(roots[place] / "a/b") if place in roots else place
        assert mounted["out"].place == expected, store
        uploaded = plan_outputs(
            Definition("t.py", outputs={"out": Output(store, "a/b", COPIED)}), target, workspace
        )
        assert uploaded["out"].place == COPIED, store
    data = roots["default"] / "data"
    data.mkdir(parents=True)
    check_inputs({"data": str(data)}, target, workspace)


def test_a_driver_somewhere_on_a_cluster_gets_no_data(workspace: Workspace, tmp_path: Path) -> None:
    """It sees neither folders of the head node nor of this machine."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "t.py").write_text("")
    workspace.targets_dir.mkdir(parents=True, exist_ok=True)
    (workspace.targets_dir / "hdi.yaml").write_text("type: spark\naddress: head\ndeploy_mode: cluster\n")
    for changes in ({"outputs": {"out": Output("disk")}}, {"inputs": {"data": str(tmp_path)}}):
        with pytest.raises(SubmissionRefused, match="read and write addresses, or use deploy_mode client"):
            plan(Request(Definition("t.py", target="hdi", **changes), tmp_path / "src"), workspace)  # type: ignore[arg-type]


def test_invalid_output_is_refused(workspace: Workspace) -> None:
    """Unknown stores, paths out of a store, names used twice and folders that are not copied are refused."""
    with pytest.raises(InvalidSettings, match="did you mean disk"):
        read_output("out", "disc/a", workspace)
    with pytest.raises(InvalidSettings, match="cannot be the name of an input or output"):
        read_output("a b", "disk/a", workspace)
    assert read_output("out", "disk/a/b", workspace) == Output("disk", "a/b")
    with pytest.raises(SubmissionRefused, match="leads out of the data store disk"):
        plan_outputs(Definition("t.py", outputs={"out": Output("disk", "../x")}), Target("local"), workspace)
    twice = Definition("t.py", inputs={"out": "/data"}, outputs={"out": Output("disk")})
    with pytest.raises(SubmissionRefused, match="out is the name of an input and of an output"):
        plan_outputs(twice, Target("local"), workspace)
    assert folder_of_script("./outputs/a") == "outputs/a"
    for path in ("result", "/tmp/result", "outputs", "outputs/../..", ""):
        with pytest.raises(InvalidSettings, match="write to a folder below outputs/"):
            folder_of_script(path)


def test_files_are_copied_into_the_store(world: World, workspace: Workspace, tmp_path: Path) -> None:
    """Without links, which mean other files here; files that are there stay, unless they are replaced."""
    pytest.importorskip("fsspec", reason="needs fsspec")
    outputs = {
        "out": Output("disk", "{run-id}/{output-name}", COPIED, overwrite=False),
        "far": Output("far", "x", "outputs/far"),
        "seen": Output("disk", "y", str(tmp_path / "disk" / "y")),
        "none": Output("disk", "z", "outputs/none"),
        "link": Output("disk", "link", "outputs/link"),
    }
    folder = world.submit(Definition("t.py", outputs=outputs))
    written = folder.outputs / "out"
    (written / "deep").mkdir(parents=True)
    (written / "deep" / "a.txt").write_text("a")
    (written / "b.txt").write_text("new")
    (written / "secret").symlink_to("/etc/passwd")
    (written / "etc").symlink_to("/etc")
    (folder.outputs / "link").symlink_to("/etc")
    (folder.outputs / "far").mkdir()
    (folder.outputs / "far" / "c.txt").write_text("c")
    store = tmp_path / "disk" / folder.id / "out"
    store.mkdir(parents=True)
    (store / "b.txt").write_text("old")
    lines, failure = store_outputs(folder, workspace)
    assert failure is None
    assert {path.name: path.read_text() for path in store.rglob("*.txt")} == {"a.txt": "a", "b.txt": "old"}
    assert sorted(path.name for path in store.iterdir()) == ["b.txt", "deep"]
    assert (tmp_path / "far" / "x" / "c.txt").read_text() == "c"
    assert not (tmp_path / "disk" / "link").exists()
    assert lines == [
        f"copied 1 of 2 files of outputs/out to disk/{folder.id}/out; the others are there already, "
        "and overwrite is False",
        "copied 1 of 1 files of outputs/far to far/x",
        "copied 0 of 0 files of outputs/none to disk/z",
        "copied 0 of 0 files of outputs/link to disk/link",
    ]


def test_a_run_fails_when_its_files_cannot_be_stored(world: World, workspace: Workspace) -> None:
    """It says how to store them; a run that has failed itself stores nothing."""

    def run(status: int) -> tuple[Runner, Path]:
        world.machine = Machine()
        world.machine.exit = exited(status)
        folder = world.submit(Definition("t.py", outputs={"out": Output("disk", "x", COPIED)}))
        (folder.outputs / "out").mkdir(parents=True)
        (folder.outputs / "out" / "a").write_text("a")
        runner = Runner(
            folder,
            world.store,
            PuppetEngine(world.machine),
            None,
            world.root / "snapshots",
            at_once,
            deliver=lambda ended: store_outputs(ended, workspace),
            clock=world.clock,  # type: ignore[arg-type]
        )
        runner.run()
        return runner, folder.path

    store = Path(workspace.root.parent / "disk")
    assert run(1)[0].state.status is Status.FAILED
    assert not (store / "x").exists()
    good, path = run(0)
    assert good.state.status is Status.COMPLETED
    assert (store / "x" / "a").read_text() == "a"
    assert "copied 1 of 1 files of outputs/out to disk/x" in (path / "events.jsonl").read_text()
    unregister_store(workspace, "disk")
    (workspace.root / "stores" / "disk").rmdir()
    (workspace.root / "stores" / "disk").write_text("in the way")
    error = run(0)[0].state.error
    assert error is not None
    assert error.code == FailureCode.OUTPUT_NOT_STORED
    assert "stoker stores upload disk" in error.hint
