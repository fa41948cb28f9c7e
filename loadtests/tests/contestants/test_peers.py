"""The peers of `make compare`: their environments and their starts."""

import sys
from pathlib import Path

import pytest

from stoker.errors import OperatorError
from stoker_bench.contestants.entry_scripts import GRAPH_SCORE
from stoker_bench.contestants.peers import (
    GRAPH_SCRIPT_PEER,
    PEERS,
    SERVICES,
    Peer,
    Site,
    build_environment,
    graph_script_launch,
)

ALL = (*PEERS, GRAPH_SCRIPT_PEER)


@pytest.mark.parametrize("peer", ALL, ids=lambda peer: peer.folder)
def test_every_requirement_is_pinned_and_the_peer_comes_first(peer: Peer) -> None:
    """The table's version is the one that is installed."""
    assert all(requirement.count("==") == 1 for requirement in peer.requirements)
    assert peer.requirements[0] == f"{peer.package}=={peer.version}"


@pytest.mark.parametrize("peer", ALL, ids=lambda peer: peer.folder)
def test_launch_uses_the_peers_environment_and_existing_files(peer: Peer, tmp_path: Path) -> None:
    """The program comes from the peer's own environment, service files exist, and the port is passed on."""
    site = Site(tmp_path / peer.package, tmp_path / "model" / "mlp.onnx", tmp_path / "scratch")
    launch = peer.launch(site)
    assert Path(launch.command[0]).parent == site.programs
    services = [part for part in launch.command if part.startswith(str(SERVICES))]
    assert services
    assert all(Path(part).exists() for part in services)
    assert str(launch.port) in {*launch.command, *launch.environment.values()}


def test_environments_have_names_of_their_own() -> None:
    """The same server with other packages does not replace the one without them."""
    assert len({peer.folder for peer in ALL}) == len(ALL)


def test_graph_script_gets_its_workers_and_its_path(tmp_path: Path) -> None:
    """Azure's server is started with as many processes as the table says, for the run folder and the script."""
    launch = graph_script_launch(Site(tmp_path, tmp_path / "run", tmp_path), GRAPH_SCORE, workers=3)
    assert launch.name.endswith("3 workers")
    assert launch.command[launch.command.index("--worker_count") + 1] == "3"
    assert launch.environment["AZUREML_MODEL_DIR"] == str(tmp_path / "run")
    assert launch.environment["ENTRY_SCRIPT"] == str(GRAPH_SCORE)


def stamped(environments: Path, peer: Peer, requirements: tuple[str, ...]) -> Path:
    """Pretend that a peer's environment was built with some requirements."""
    environment = environments / peer.package
    environment.mkdir()
    (environment / "requirements.txt").write_text("\n".join(requirements) + "\n")
    return environment


def test_built_environment_is_used_as_it_is(tmp_path: Path) -> None:
    """With the wanted requirements in place nothing is installed again."""
    peer = PEERS[0]
    environment = stamped(tmp_path, peer, peer.requirements)
    assert build_environment(peer, tmp_path) == environment
    assert sorted(path.name for path in environment.iterdir()) == ["requirements.txt"]


def test_outdated_environment_needs_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other pins need a new environment, and the error without uv says how to install it."""
    peer = PEERS[0]
    stamped(tmp_path, peer, ("mosec==0.1",))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OperatorError, match="make install"):
        build_environment(peer, tmp_path)
