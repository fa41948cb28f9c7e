"""The bounds for a GPU in a table, and peers on the same device."""

from pathlib import Path

import numpy as np
import pytest

from stoker_bench.contestants.servers import post
from stoker_bench.errors import BenchedServerError
from stoker_bench.gpu import acceptance
from stoker_bench.gpu.acceptance import AIMS, Acceptance, AcceptanceBench, AcceptanceOptions
from stoker_bench.gpu.models import ModelMaker
from stoker_bench.gpu.peers import PEERS, GpuPeer


def test_a_bound_is_met_from_above_or_from_below() -> None:
    """A share has to be at least its bound, a time at most; what was not measured is neither."""
    found = Acceptance(values={"closed 512": 0.97, "poisson": 0.91, "load": 4.0, "lone mlp": 3.1})
    assert [found.is_met(key) for key in ("closed 512", "poisson", "load", "lone mlp", "images")] == [
        *(True, False, True, False, None)
    ]


def test_the_table_says_what_was_before_what_is_and_why_something_is_missing() -> None:
    """Every bound has a line, met or not, and each peer one for each number of callers."""
    found = Acceptance({"closed 512": 0.98}, {"poisson": "no generator"}, [("mosec", 512, 4321.0, 118.2)])
    lines = found.table().splitlines()
    assert lines[2].split()[-5:] == ["0.82", "≥", "0.97", "0.98", "met"]
    assert sum("not measured" in line for line in lines) == len(AIMS) - 1 + 1
    assert "not measured: Poisson arrivals, p99 ≤ 15 ms, of the ceiling: no generator" in lines
    assert lines[-1].split() == ["mosec", "512", "4,321", "118"]


def test_a_failure_leaves_the_other_bounds_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step would have measured is noted with the reason, but for what it has measured before."""

    def half(bench: AcceptanceBench) -> None:
        bench.found.values["closed 512"] = 1.0
        raise BenchedServerError("the server ended")

    def whole(bench: AcceptanceBench) -> None:
        bench.found.values["lone mlp"] = 2.0

    for name, measure in (("_resnet50", half), ("_images", half), ("_large_rows", half), ("_mlp", whole)):
        monkeypatch.setattr(AcceptanceBench, name, measure)
    found = AcceptanceBench(AcceptanceOptions("cpu"), tmp_path).run()
    assert found.values == {"closed 512": 1.0, "lone mlp": 2.0}
    assert set(found.reasons) == set(AIMS) - set(found.values)
    assert found.reasons["poisson"] == "the server ended"


def test_the_load_is_read_from_what_the_server_prints() -> None:
    """Loading and warming up together."""
    assert acceptance._load_s("x\n  loaded in 2.25 s, warm after 0.50 s, batches of") == 2.75
    with pytest.raises(BenchedServerError, match="how long"):
        acceptance._load_s("nothing")


def test_a_peer_answers_rows_as_bytes(tmp_path: Path) -> None:
    """The hand-written service starts on the CPU, its answer is checked, and it is gone afterwards."""
    model = ModelMaker(tmp_path).make("mlp", "fp32", "float32")
    with PEERS[0].start(model, "cpu", tmp_path) as request:
        status, body = post(request.host, request.port, request.path, request.body, request.headers)
        assert (status, len(np.frombuffer(body, np.float32))) == (200, 10)
    assert post(request.host, request.port, request.path, request.body, request.headers)[0] != 200


def test_a_peer_that_is_not_installed_is_named(tmp_path: Path) -> None:
    """It costs nothing but its line."""
    model = ModelMaker(tmp_path).make("mlp", "fp32", "float32")
    peer = GpuPeer("none", "none.py", "no_such_package")
    with pytest.raises(BenchedServerError, match="no_such_package is not installed"):
        peer.start(model, "cpu", tmp_path).__enter__()
