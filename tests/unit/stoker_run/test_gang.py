"""Several nodes of one attempt: what each is given, and how the failure of one ends all."""

import json
from pathlib import Path
from typing import Any

from stoker_run.attempt import read_start
from stoker_run.gang import PEER, assign, find_failure, folders_of, follow


def make_attempt(tmp_path: Path) -> Path:
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    start = {
        "version": 1,
        "run_id": "e_1_0",
        "experiment": "e",
        "attempt": 1,
        "command": ["a"],
        "directory": "work",
    }
    (attempt / "start.json").write_text(json.dumps({**start, "nodes": 2, "processes": 2, "nodes_here": 2}))
    return attempt


def test_each_node_knows_its_ranks_and_all_addresses(tmp_path: Path) -> None:
    """The logs of the second node are found in the folder of the attempt, which nobody else may read."""
    attempt, workers = make_attempt(tmp_path), tmp_path / "workers"
    for node in range(2):
        (workers / str(node)).mkdir(parents=True)
    peers = [f"10.0.0.{number}:1" for number in range(4)]
    assign(workers, attempt, peers)
    for node, place in enumerate(folders_of(attempt, 2)):
        start = read_start(place)
        assert (start.node, list(start.ranks), start.peers) == (node, [2 * node, 2 * node + 1], peers)
        assert (place / "start.json").stat().st_mode & 0o077 == 0
        assert json.loads((workers / str(node) / "next").read_text()) == {"attempt": str(place)}
    (attempt / "node_1" / "log_3.txt").write_text("hello")
    assert (attempt / "log_3.txt").read_text() == "hello"


def write_exit(place: Path, **report: Any) -> None:
    place.mkdir(exist_ok=True)
    known = {"outcome": "exited", "exit_status": 0, "reason": None, "ended_ms": 1}
    (place / "exit.json").write_text(json.dumps({**known, **report}))


def test_the_first_failure_is_that_of_the_attempt(tmp_path: Path) -> None:
    """Nodes that were ended for it have not failed; a lost node counts before all, also one that nobody tells of."""
    first, second = folders_of(make_attempt(tmp_path), 2)
    write_exit(first)
    assert find_failure([first, second]) is None
    write_exit(second, exit_status=1, ended_ms=2)
    write_exit(first, outcome="stopped", reason=PEER)
    assert (find_failure([first, second]) or {})["ended_ms"] == 2
    write_exit(first, outcome="signalled")
    assert (find_failure([first, second]) or {})["outcome"] == "signalled"
    (second / "lost.json").write_text('{"reason": "gone"}')
    assert find_failure([first, second]) == {"reason": "gone"}
    (second / "lost.json").unlink()
    for place in (first, second):
        write_exit(place, outcome="stopped", reason=PEER)
    assert find_failure([first, second]) == {"reason": "the cluster has lost one of its nodes"}


def test_nodes_are_ended_when_one_is_gone_or_the_run_is_stopped(tmp_path: Path) -> None:
    """A worker that ends without a word is a failure too; a request to stop reaches each node."""
    attempt = make_attempt(tmp_path)
    first, second = folders_of(attempt, 2)
    second.mkdir()
    start = read_start(attempt)
    answers = iter([[False, True], [True, True]])
    follow(attempt, start, lambda: next(answers))
    assert json.loads((first / "stop.json").read_text())["reason"] == PEER
    (first / "stop.json").write_text('{"grace_s": 3, "reason": "canceled"}')
    (second / "stop.json").unlink()
    answers = iter([[False, False], [True, True]])
    follow(attempt, start, lambda: next(answers))
    assert json.loads((second / "stop.json").read_text())["reason"] == "canceled"
