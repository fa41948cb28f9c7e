"""The settings that a search tries."""

from __future__ import annotations

from tests.unit.profiling.linear_curves import line

from stoker.profiling.candidates import Candidate, Space


def test_all_candidates_keep_the_admission_of_the_model() -> None:
    """Admission is neither searched nor written."""
    space = Space({"auto": line(2, 0.5)}, Candidate(16, admission="rows"))
    assert {candidate.admission for candidate in space.candidates()} == {"rows"}
    assert "admission" not in space.default.settings()


def test_sizes_of_padded_batches_are_thinned_out() -> None:
    """A curve of fixed sizes gives sets of all buckets and of every second one, none above the largest batch."""
    space = Space({"auto": line(2, 0.5, filled=True)}, Candidate(16, batch_buckets=(1, 4, 16)))
    candidates = {(one.max_batch_rows, one.batch_buckets) for one in space.candidates()}
    assert candidates == {(1, (1,)), (4, (1, 4)), (16, (1, 4, 16)), (16, (1, 16))}


def test_instances_are_tried_that_run_at_once() -> None:
    """A second instance is a candidate where the model can be forked and two batches gain enough."""
    for gain, forks, instances in ((0.9, True, {1, 2}), (0.9, False, {1}), (0.1, True, {1})):
        space = Space({"auto": line(4, 0.5, gain)}, Candidate(16), forks=forks)
        assert {one.instances for one in space.candidates()} == instances


def test_settings_of_a_candidate_leave_out_defaults() -> None:
    """Batches of whole requests have no number of rows to write, and `auto` is not written."""
    assert Candidate(16, requests=True).settings() == {"instances": 1}
    assert Candidate(16, 2, (8, 16), "graph").settings() == {
        "max_batch_rows": 16, "instances": 2, "batch_buckets": [8, 16], "execution": "graph"
    }  # fmt: skip
