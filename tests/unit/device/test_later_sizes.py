"""Sizes of batches that are prepared while a model serves: on a device of virtual time, with the times of an H200."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.pipelined_puppets import PipelinedJoined, PuppetSizes
from tests.puppets import HandClock, answer_of, doubled
from tests.unit.device.test_pipelined_load import resnet50_ns

from stoker.deployment import Deployment, Device
from stoker.device import later_sizes, loading
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes
from stoker.device.bucket_choice import candidate_sizes
from stoker.device.kept_sizes import KeepSizes, read_sizes, write_sizes
from stoker.device.pipelined_worker import PipelinedWorker
from stoker.runtimes.base import OutOfMemory

MS = 1_000_000
CAPTURE_MS = 149
"""A change of size, for which cuDNN plans anew: ResNet-50 on an H200, 2026-11-26."""
GPU = Device("cuda", 0, "GPU", "GPU-1")


class Card(PuppetSizes):
    """A device that takes the time of a capture for each size, and counts captures."""

    def __init__(self) -> None:
        super().__init__()
        self.takes_ns = resnet50_ns
        self.captures: list[int] = []

    def add_size(self, rows: int) -> int:
        """Capture a size."""
        assert isinstance(self.clock, HandClock)
        self.clock.advance_ms(CAPTURE_MS)
        self.captures.append(rows)
        return super().add_size(rows)


@contextmanager
def growing(
    monkeypatch: pytest.MonkeyPatch,
    sizes: Sequence[int] = candidate_sizes(256),
    keep: KeepSizes | None = lambda _: None,
) -> Iterator[tuple[PipelinedJoined, Card]]:
    """A model whose smallest size is prepared; sizes are opened at once."""
    monkeypatch.setattr(later_sizes, "start_thread", lambda run, _: run())
    card = Card()
    with PipelinedJoined(
        card, policy=BatchPolicy(256, buckets=(1,)), sizes=BatchSizes((1,), chosen=True), capacity=2048
    ) as joined:
        worker = joined.worker
        assert isinstance(worker, PipelinedWorker)
        worker.teach([(1, resnet50_ns(1))])
        worker.add_sizes_later("resnet", sizes, keep)
        yield joined, card


def test_later_sizes_idle_are_added_from_the_smallest_up_and_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them take as long as at a load; those that do not pay are removed."""
    caplog.set_level("INFO")
    kept: list[Sequence[int]] = []
    with growing(monkeypatch, keep=kept.append) as (joined, card):
        begun_ns = joined.clock()
        while joined.worker._later is not None:  # type: ignore[attr-defined]
            joined.turn_device()
        assert card.captures == sorted(card.captures)
        assert joined.clock() - begun_ns <= (len(card.captures) * CAPTURE_MS + 1) * MS
        buckets = joined.worker.cap.policy.buckets
        assert tuple(card.sizes) == buckets == joined.worker.cap.sizes.buckets == tuple(kept[0])
        assert (buckets[-1], joined.worker.cap.rows) == (64, 64)
        assert "batch_buckets 1," in caplog.text
        ticket = joined.submit(*range(64))
        joined.settle()
        assert answer_of(ticket) == doubled(*range(64))
        assert card.begun[-1] == 64


def test_later_sizes_request_arrives_waits_for_one_capture_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who comes back at once finds the device within the time of one capture each time."""
    with growing(monkeypatch) as (joined, card):
        card.on_look = lambda: joined.clock.advance_ms(0.1)
        longest_ns = 0
        for number in range(40):
            joined.turn_device()
            begun_ns = joined.clock()
            ticket = joined.submit(number)
            while ticket.answer is None:
                joined.turn_frontends()
                joined.turn_device()
            longest_ns = max(longest_ns, joined.clock() - begun_ns)
            joined.clock.advance_ms(50)
        assert len(card.captures) > 5
        assert longest_ns <= (CAPTURE_MS + 5) * MS


def test_later_sizes_backlog_is_served_between_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load larger sizes are added too, and batches run for as long as each capture took."""
    with growing(monkeypatch) as (joined, card):
        joined.completes = False
        # There is no second thread.
        monkeypatch.setattr(joined.worker.flights, "wait_until_landed", joined.complete)  # type: ignore[attr-defined]
        tickets = [joined.submit(number) for number in range(1500)]
        joined.turn_frontends()
        ended_ns: list[int] = []
        while not ended_ns or joined.worker.queue.rows:
            captures = len(card.captures)
            joined.worker.turn(0)
            if len(card.captures) > captures:
                ended_ns.append(joined.clock())
            joined.complete()
        assert len(ended_ns) > 1
        assert ended_ns[1] - ended_ns[0] >= 2 * CAPTURE_MS * MS
        joined.completes = True
        joined.settle()
        assert all(answer_of(ticket) == doubled(number) for number, ticket in enumerate(tickets))


def test_later_sizes_without_memory_ends_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The model goes on serving."""
    with growing(monkeypatch) as (joined, card):
        card.add_fails = {8: OutOfMemory("no memory")}
        for _ in range(30):
            joined.turn_device()
        assert "batches of 8 rows and more are left out: no memory" in caplog.text
        assert tuple(card.sizes) == joined.worker.cap.policy.buckets == (1, 2, 4)


def test_later_sizes_of_an_earlier_choice_are_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is tried."""
    with growing(monkeypatch, (1, 4, 16), keep=None) as (joined, card):
        for _ in range(10):
            joined.turn_device()
        assert card.captures == [4, 16]
        assert joined.worker.cap.policy.buckets == (1, 4, 16)


def test_later_sizes_after_a_failure_do_not_raise_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that did not fit before does not fit now."""
    with growing(monkeypatch, (1, 2, 4, 8)) as (joined, _):
        joined.worker.cap.stop_batching()
        for _ in range(10):
            joined.turn_device()
        assert joined.worker.cap.rows == 1


def test_kept_sizes_are_of_the_same_device_and_settings(tmp_path: Path) -> None:
    """Another device may need others; a file that cannot be read is none."""
    deployment = Deployment("digits", 1, "onnx", Path("model.onnx"), Path(), 64, 1000)
    write_sizes(deployment, GPU, (1, 8))
    assert read_sizes(deployment, GPU) is None, "it has no folder"
    deployment = replace(deployment, engine_cache=tmp_path / "engines")
    assert read_sizes(deployment, GPU) is None
    write_sizes(deployment, GPU, (1, 8))
    assert read_sizes(deployment, GPU) == (1, 8)
    assert read_sizes(deployment, msgspec.structs.replace(GPU, description="another GPU")) is None
    assert read_sizes(replace(deployment, target_ms=5.0), GPU) is None
    (file,) = (tmp_path / "engines").iterdir()
    file.write_text("[1, 8")
    assert read_sizes(deployment, GPU) is None


def test_load_with_sizes_left_for_later_is_within_four_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the H200 a load of ResNet-50 with all captures took 5.1 s."""
    taken_ns = []
    for adds_later in (False, True):
        card = Card()
        monkeypatch.setattr(loading, "load_runtime", lambda *_, card=card: card)
        begun_ns = card.clock()
        model = Deployment("digits", 1, "onnx", Path("model.onnx"), Path(), 256, 1000)
        loaded = loading.load(model, GPU, card.clock, adds_later=adds_later)
        taken_ns.append(card.clock() - begun_ns)
    assert (loaded.sizes.buckets, loaded.later_sizes[-1]) == ((1,), 256)
    assert 5100 * MS - (taken_ns[0] - taken_ns[1]) <= 4000 * MS


def test_load_after_a_kept_choice_prepares_these_sizes_and_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice of the first load is all that the second one prepares."""
    card = Card()
    monkeypatch.setattr(loading, "load_runtime", lambda *_: card)
    model = Deployment("digits", 1, "onnx", Path("model.onnx"), Path(), 256, 1000, engine_cache=tmp_path)
    first = loading.load(model, GPU, card.clock, adds_later=True)
    assert first.keep_sizes is not None
    first.keep_sizes((1, 8))
    second = loading.load(model, GPU, Card().clock, adds_later=True)
    assert (second.later_sizes, second.keep_sizes) == ((1, 8), None)
