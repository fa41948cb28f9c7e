"""The engine of Ray clusters keeps every promise of an engine, on real nodes."""

import json
import sys

import pytest
from tests.ray.conftest import Cluster
from tests.targets.conftest import Bench
from tests.targets.test_conformance import *  # noqa: F403

from stoker.settings.workspace import Workspace
from stoker_runs.targets.definitions import Target
from stoker_runs.targets.registry import engine_of


def settings_of(cluster: Cluster) -> dict[str, object]:
    """A target's settings of the cluster; its nodes run the Python of these tests."""
    return {"address": cluster.dashboard, "max_nodes": 2, "idle_s": 30, "python": sys.executable}


@pytest.fixture(scope="module")
def bench(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """One for all, so that a job of Ray is started once."""
    workspace = Workspace(tmp_path_factory.mktemp("shared") / "workspace").create()
    workspace.targets_dir.mkdir()
    secret = workspace.targets_dir / "ray.secret"
    secret.write_text(json.dumps({"token": ray_cluster.token}))
    secret.chmod(0o600)
    settings = settings_of(ray_cluster)
    return Bench(workspace, lambda place: engine_of(Target("ray", "ray", settings), place))
