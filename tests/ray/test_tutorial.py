"""The part of the tutorial "laptop, GPU machine, cluster" that needs a Ray cluster."""

from pathlib import Path

from tests.ray.conftest import Cluster
from tests.tutorials.test_tutorials import BLOCK, PAGES, Reader

from stoker_runs.records.states import Status
from stoker_runs.records.store import RunStore


def test_the_script_of_the_laptop_runs_on_a_cluster(ray_cluster: Cluster, tmp_path: Path) -> None:
    """Its commands, with the address and the token of this cluster, end with the outputs in the run."""
    (page,) = (page for page in PAGES if page.stem == "from-laptop-to-cluster")
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    script = next(content for language, content in blocks if language == "python")
    (commands,) = (
        content for language, content in blocks if language == "sh" and "targets create" in content
    )
    create, submit = commands.replace("http://head:8265", ray_cluster.dashboard).splitlines()
    create = f"echo {ray_cluster.token} | {create} --ask-token"
    reader = Reader(tmp_path)
    try:
        reader.follow(
            f"```python\n{script}```\n```console\n$ {create}\n$ {submit}\nprocess 0 of 1, GPUs: …\n```\n"
        )
    finally:
        left = reader.kill_left()
    (run,) = RunStore(tmp_path / ".stoker" / "runs").folders()
    assert run.state().status is Status.COMPLETED
    assert (run.outputs / "weights.json").exists()
    assert not left
