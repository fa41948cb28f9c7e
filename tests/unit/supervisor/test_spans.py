"""Spans of the requests that frontends report: stages are children, batches are linked both ways."""

from __future__ import annotations

import itertools

from stoker.metrics.journal import TracedRequest
from stoker.supervisor.spans import MAX_LINKS, Span, SpanMaker

SINCE_1970_NS = 10**18


def maker() -> SpanMaker:
    """One whose ids are counted."""
    numbers = itertools.count(1)
    return SpanMaker(lambda _: next(numbers), lambda: SINCE_1970_NS)


def request(number: int, started_ns: int = 300, **more: object) -> TracedRequest:
    """One of two rows in the trace of its number, which took a hundred nanoseconds in each stage."""
    first = TracedRequest(
        f"{number:032x}", f"a{number:015x}", f"b{number:015x}", "id", "m", "3", 200, "", 2, 0,
        started_ns - 200, started_ns + 200, started_ns - 100, started_ns, started_ns + 100,
    )  # fmt: skip
    return first._replace(**more)


def named(spans: list[Span], name: str) -> list[Span]:
    """Those with a name."""
    return [span for span in spans if span.name == name]


def test_stages_are_children_that_fill_their_request() -> None:
    """One behind the other, in the trace of the caller, in nanoseconds since 1970."""
    whole, *stages = maker().make([request(7)])
    assert (whole.name, whole.parent_id, whole.of_caller) == ("score m", f"b{7:015x}", True)
    assert (whole.begin_ns, whole.end_ns) == (SINCE_1970_NS + 100, SINCE_1970_NS + 500)
    assert [stage.name for stage in stages] == ["parse", "queue", "compute", "answer"]
    assert [stage.begin_ns for stage in stages] == [SINCE_1970_NS + at for at in (100, 200, 300, 400)]
    assert [stage.end_ns for stage in stages] == [SINCE_1970_NS + at for at in (200, 300, 400, 500)]
    assert {(stage.trace_id, stage.parent_id) for stage in stages} == {(whole.trace_id, whole.span_id)}
    assert whole.attributes == {
        "http.response.status_code": 200,
        "stoker.model": "m",
        "stoker.version": "3",
        "stoker.request_id": "id",
        "stoker.rows": 2,
    }


def test_waiting_for_a_turn_is_a_stage_of_its_own() -> None:
    """It ends when the batch leaves, and is no part of the queue."""
    stages = {span.name: span for span in maker().make([request(7, turn_ns=30)])}
    assert list(stages) == ["score m", "parse", "queue", "turn", "compute", "answer"]
    assert (stages["queue"].end_ns, stages["turn"].begin_ns) == (SINCE_1970_NS + 270,) * 2
    assert stages["turn"].end_ns == stages["compute"].begin_ns == SINCE_1970_NS + 300


def test_a_batch_is_linked_with_all_its_requests() -> None:
    """Also those of another frontend that are read later; it has its span when nothing more of it is expected."""
    making = maker()
    first = making.make([request(1), request(2), request(3, started_ns=900)])
    second = making.make([request(4)])
    assert named(first, "batch m") == []
    batch, other = named(second, "batch m")
    assert batch.links == tuple((f"{number:032x}", f"a{number:015x}") for number in (1, 2, 4))
    assert (batch.begin_ns, batch.end_ns) == (SINCE_1970_NS + 300, SINCE_1970_NS + 400)
    assert batch.attributes["stoker.batch.traced_requests"] == 3
    assert batch.attributes["stoker.batch.traced_rows"] == 6
    assert other.links == ((f"{3:032x}", f"a{3:015x}"),)
    for whole in (*named(first, "score m")[:2], *named(second, "score m")):
        assert whole.links == ((batch.trace_id, batch.span_id),)
    assert making.make([], last=True) == []


def test_links_of_a_batch_are_bounded() -> None:
    """All its requests are counted, and as many named as OpenTelemetry allows."""
    making = maker()
    (batch,) = named(making.make(map(request, range(200)), last=True), "batch m")
    assert len(batch.links) == MAX_LINKS
    assert batch.attributes["stoker.batch.traced_requests"] == 200


def test_span_of_an_unscored_request_has_no_stages() -> None:
    """A refused request has its code, and a cached answer has no batch; only server errors are failures."""
    making = maker()
    none = {"enqueued_ns": 0, "started_ns": 0, "finished_ns": 0}
    refused = request(1, **none, status=422, code="invalid_input")
    failed = request(2, **none, status=503, code="overloaded")
    script = request(3, **none, status=500)
    one, two, three = making.make([refused, failed, script], last=True)
    assert [span.failed for span in (one, two, three)] == [False, True, True]
    kinds = [span.attributes["error.type"] for span in (one, two, three)]
    assert kinds == ["invalid_input", "overloaded", "500"]
    kept = making.make([request(4, finished_ns=300)], last=True)
    assert (kept[0].links, len(kept)) == ((), 5)
