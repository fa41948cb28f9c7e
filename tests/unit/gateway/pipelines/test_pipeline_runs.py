"""Requests to pipelines, by hand: which rows go to which model, in which batches, and how requests end early."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from tests.puppets import (
    FAR_NS,
    Joined,
    PuppetRuntime,
    metric_memory,
    puppet_pipeline,
    puppet_service,
    rows_of,
)

from stoker.control.frontend_messages import Sampling
from stoker.errors import RequestOverQuota
from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.pipelines.service import PipelineExchange, PipelineLoadReports
from stoker.gateway.rows.cache import AnswerCache
from stoker.gateway.rows.urgency import DEFAULT_URGENCY, Quota
from stoker.gateway.scoring.call import Call
from stoker.gateway.scoring.call_options import CallOptions
from stoker.gateway.scoring.observers import Observer, Observers
from stoker.gateway.scoring.service import Service
from stoker.gateway.scoring.tracing import Tracing
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.metrics.journal import TraceReader, TraceWriter
from stoker.metrics.memory import MetricMemory
from stoker.sequence_steps import SequenceStep
from stoker.settings.pipeline_graph import Progress
from stoker.settings.pipelines import Pipeline, Step
from stoker.settings.versions import VersionStatus
from stoker.takeover.traffic_split import Split
from stoker.tensors import Signature, TensorSpec

DOUBLE = Step("double", "double", inputs={"x": "sent"}, outputs={"y": "doubled"})
NEGATE = Step("negate", "negate", inputs={"x": "doubled"}, outputs={"y": "negated"})
CHAIN = Pipeline("chain", (NEGATE, DOUBLE))
SUMS = Signature(
    (TensorSpec("a", "float32", (2,)), TensorSpec("b", "float32", (2,))), (TensorSpec("c", "float32", (2,)),)
)
SPLIT = Signature(
    (TensorSpec("x", "float32", (2,)),), (TensorSpec("y", "float32", (2,)), TensorSpec("z", "float32", (2,)))
)
PART = Step("split", "split", inputs={"x": "sent"}, outputs={"y": "doubled"})
JOIN = Pipeline(
    "join",
    (
        PART,
        NEGATE,
        Step("add", "add", inputs={"a": "sent", "b": "negated"}, outputs={"c": "sum"}),
    ),
    outputs=("sum", "doubled"),
)


class Scene:
    """Models on puppets, a pipeline of them, and the answers that its callers get.

    Attributes:
        devices: The models by name.
        models: What is served.
        answers: Status, header lines and JSON of each answer, in their order.
    """

    def __init__(self, pipeline: Pipeline, devices: Mapping[str, Joined], **limits: Any) -> None:
        self.devices = devices
        self.memory = metric_memory()
        self.models: dict[str, ServedModel] = {}
        for slot, (name, device) in enumerate(devices.items()):
            service = puppet_service(name, self.memory, slot=slot, timeout_ms=10**9, **limits.get(name, {}))
            service.attach(device.exchange)
            self.models[name] = ServedModel.of(service, slot)
        clock = next(iter(devices.values())).clock
        self.pipeline = puppet_pipeline(pipeline, self.models, self.memory, len(devices), clock_ns=clock)
        self.pipeline.limits = msgspec.structs.replace(self.pipeline.limits, timeout_ns=FAR_NS)
        self.pipeline.refresh()
        self.answers: list[tuple[int, bytes, Any]] = []

    def service(self, name: str) -> Service:
        """A model."""
        return next(self.models[name].services)

    def ask(self, *first: float) -> Call:
        """Send rows that start with these numbers."""
        body = json.dumps({"data": rows_of(*first)[0].tolist()}).encode()
        return self.pipeline.score(body, None, self.note, 0)

    def note(self, status: int, lines: bytes, body: bytes) -> None:
        self.answers.append((status, lines, json.loads(body)))

    def settle(self) -> None:
        """Let all models work until nothing moves; one model's answer may be work for another."""
        for _ in range(2 * len(self.devices)):
            for device in self.devices.values():
                device.settle()


Make = Callable[..., Scene]


@pytest.fixture
def scene() -> Iterator[Make]:
    """Make scenes of `double`, `split`, `negate` and `add`."""
    with ExitStack() as devices, np.errstate(over="raise"):

        def make(pipeline: Pipeline, cache: AnswerCache | None = None, **limits: Any) -> Scene:
            runtimes = {
                "double": PuppetRuntime(),
                "split": PuppetRuntime(SPLIT, lambda inputs: [2 * inputs[0], 3 * inputs[0]]),
                "negate": PuppetRuntime(answer=lambda inputs: [-inputs[0]]),
                "add": PuppetRuntime(SUMS, lambda inputs: [inputs[0] + inputs[1]]),
            }
            named = {step.model for step in pipeline.steps}
            joined = {
                name: devices.enter_context(Joined(runtime, cache=cache if name == "double" else None))
                for name, runtime in runtimes.items()
                if name in named
            }
            return Scene(pipeline, joined, **limits)

        yield make


@pytest.mark.parametrize("first", [[1.0], [1.0, 3.0], [float(number) for number in range(12)]])
def test_rows_go_through_all_steps_in_order(scene: Make, first: list[float]) -> None:
    """One row, several, and more than may be in an arena at once have the answers of the models one by one."""
    chain = scene(CHAIN)
    chain.ask(*first)
    chain.settle()
    ((status, _, answer),) = chain.answers
    assert status == 200
    assert answer == (-2 * rows_of(*first)[0]).tolist()
    assert all(device.exchange.idle for device in chain.devices.values())
    assert chain.pipeline.idle


@pytest.mark.parametrize("first", [[1.0], [1.0, 3.0]])
def test_step_outputs_are_kept_for_later_steps_and_the_answer(scene: Make, first: list[float]) -> None:
    """Arena rows are reused after a step, so outputs that are needed later have been copied by then."""
    join = scene(JOIN)
    join.ask(*first)
    join.devices["split"].settle()
    # Others get the rows that the first step has been in.
    ticket = join.devices["split"].submit(*(77.0 for _ in first))
    join.devices["split"].settle()
    assert ticket.completions == 1
    join.settle()
    ((status, _, answer),) = join.answers
    sent = rows_of(*first)[0]
    assert (status, answer) == (200, {"sum": (-sent).tolist(), "doubled": (2 * sent).tolist()})


def test_a_step_shares_its_batches_with_all_requests_to_its_model(scene: Make) -> None:
    """Rows of a pipeline's requests and of others are one batch of the model."""
    chain = scene(CHAIN)
    chain.ask(1)
    chain.ask(2)
    chain.devices["double"].submit(3)
    chain.settle()
    assert [[row[0] for row in batch] for batch in chain.devices["double"].runtime.batches] == [[1, 2, 3]]
    assert [[row[0] for row in batch] for batch in chain.devices["negate"].runtime.batches] == [[2, 4]]


def test_steps_that_do_not_wait_for_each_other_are_under_way_together(scene: Make) -> None:
    """Both begin when the request comes, and the answer has the outputs of both."""
    both = scene(
        Pipeline("both", (DOUBLE, Step("negate", "negate", inputs={"x": "sent"}, outputs={"y": "negated"})))
    )
    both.ask(5)
    assert [device.exchange.leased_rows for device in both.devices.values()] == [1, 1]
    both.settle()
    ((_, _, answer),) = both.answers
    assert answer == {"doubled": [[10.0, 11.0]], "negated": [[-5.0, -5.5]]}


def test_the_error_of_a_step_is_that_of_the_request_and_names_the_step(scene: Make) -> None:
    """Status, code and error id are the step's own; nothing else of the request runs."""
    chain = scene(CHAIN)
    chain.devices["negate"].runtime.fails_for.add(2.0)
    chain.ask(1)
    chain.ask(4)
    chain.settle()
    (failed, scored) = sorted(chain.answers, key=lambda answer: -answer[0])
    assert failed[0] == 500
    assert failed[2]["code"] == "model_failed"
    assert failed[2]["error_id"]
    assert failed[2]["message"].startswith("Step negate: An unexpected error occurred in scoring script.")
    assert scored[2] == [[-8.0, -9.0]]


def test_the_other_steps_of_a_request_that_has_failed_do_not_run(scene: Make) -> None:
    """Rows not yet begun are skipped; nobody receives the answers of the others."""
    join = scene(
        Pipeline("both", (DOUBLE, Step("negate", "negate", inputs={"x": "sent"}, outputs={"y": "negated"})))
    )
    join.devices["double"].runtime.fails_for.add(1.0)
    join.ask(1)
    join.devices["double"].settle()
    assert [status for status, *_ in join.answers] == [500]
    join.settle()
    assert join.devices["negate"].runtime.batches == []
    assert len(join.answers) == 1


def test_abandoned_request_begins_no_further_step(scene: Make) -> None:
    """Its waiting rows are not run either."""
    chain = scene(CHAIN)
    chain.ask(1).abandon()
    call = chain.ask(2)
    chain.devices["double"].settle()
    call.abandon()
    chain.settle()
    assert chain.devices["double"].runtime.rows_run == [2]
    assert chain.devices["negate"].runtime.batches == []
    assert chain.answers == []
    assert chain.pipeline.idle


def test_deadline_passed_in_a_step_answers_504_with_its_name(scene: Make) -> None:
    """The request's deadline is that of each step."""
    chain = scene(CHAIN)
    clock = chain.devices["double"].clock
    limits = msgspec.structs.replace(chain.pipeline.limits, timeout_ns=clock.now_ns + 5_000_000)
    chain.pipeline.limits = limits
    chain.ask(1)
    clock.advance_ms(6)
    chain.devices["double"].sweep()
    ((status, _, answer),) = chain.answers
    assert (status, answer["code"]) == (504, "deadline_exceeded")
    assert answer["message"].startswith("Step double: ")


def test_request_without_a_row_in_a_step_gets_the_models_refusal(scene: Make) -> None:
    """An overloaded first step refuses before the body is read, another step once the request reaches it."""
    chain = scene(CHAIN)
    for number in range(16):
        chain.devices["negate"].submit(number)
    chain.ask(1)
    chain.devices["double"].settle()
    for number in range(16):
        chain.devices["double"].submit(number)
    chain.pipeline.score(b"no body at all", None, chain.note, 0)
    refusals = [(status, answer["code"], answer["message"][:12]) for status, _, answer in chain.answers]
    assert refusals == [(503, "overloaded", "Step negate:"), (503, "overloaded", "Step double:")]


def test_lost_device_of_a_step_answers_503_with_its_name(scene: Make) -> None:
    """Without another replica of the model, the pipeline is not ready afterwards and says why."""
    chain = scene(CHAIN)
    chain.ask(1)
    chain.devices["double"].settle()
    negate = chain.service("negate")
    negate.detach(chain.devices["negate"].exchange)
    chain.devices["negate"].exchange.close()
    chain.pipeline.refresh()
    chain.ask(2)
    refusals = [(status, answer["code"], answer["message"]) for status, _, answer in chain.answers]
    assert refusals[0][:2] == (503, "device_lost")
    assert refusals[0][2].startswith("Step negate: ")
    assert refusals[1][:2] == (503, "not_ready")
    assert "step negate: the model negate is loading or its device restarts" in refusals[1][2]


def test_answers_that_a_model_keeps_count_for_its_steps(scene: Make) -> None:
    """Rows answered before are not run again, and the request goes on at once."""
    chain = scene(CHAIN, cache=AnswerCache(1 << 20, lambda *_: None))
    chain.ask(1)
    chain.settle()
    chain.ask(1)
    chain.settle()
    assert chain.devices["double"].runtime.rows_run == [1]
    assert [answer for _, _, answer in chain.answers] == 2 * [[[-2.0, -3.0]]]


def test_a_model_that_takes_few_at_once_lets_steps_wait(scene: Make) -> None:
    """A step that waits to be admitted has rows of its own: those that it was given are others' by then."""
    later: list[Callable[[], None]] = []

    def call_later(delay_s: float, function: Callable[[], None]) -> None:
        # The clock stands still: no wait ends.
        if not delay_s:
            later.append(function)

    limit = {"max_concurrent_requests": 1, "max_queue_wait_ms": 60_000, "call_later": call_later}
    chain = scene(Pipeline("chain", (PART, NEGATE)), negate=limit)
    for number in (1, 2):
        chain.ask(number)
        chain.devices["split"].settle()
    chain.devices["split"].submit(99)
    chain.devices["split"].settle()
    chain.settle()
    while later:
        later.pop(0)()
        chain.settle()
    assert [answer for _, _, answer in chain.answers] == [[[-2.0, -3.0]], [[-4.0, -5.0]]]


def test_steps_have_the_caller_and_the_tier_of_the_request(scene: Make) -> None:
    """A device's planner sees the rows of a step as rows of the caller."""
    chain = scene(CHAIN)
    call = chain.ask(1)
    urgent = chain.pipeline.score(
        json.dumps({"data": [[2, 2]]}).encode(),
        None,
        chain.note,
        0,
        options=CallOptions(CallerTerms("ann", 7)),
    )
    assert call.urgency is None
    assert urgent.urgency is not None
    placed = chain.devices["double"].exchange.arena.placed
    assert urgent.urgency.placed in placed.tolist()


def test_each_step_counts_as_a_request_to_its_model(scene: Make) -> None:
    """The statistics of the models have the steps, those of the pipeline the requests."""
    chain = scene(CHAIN)
    chain.ask(1, 2)
    chain.settle()
    for name in ("double", "negate"):
        chain.service(name).metrics.flush()
    chain.pipeline.metrics.flush()
    totals = chain.memory.totals()
    assert [(totals.model(slot).requests()[200], totals.model(slot).rows) for slot in range(3)] == 3 * [
        (1, 2)
    ]


def test_server_timing_has_a_time_for_each_step(scene: Make) -> None:
    """Queue and compute are sums over the steps on the way, and each step has its own time beside them."""
    chain = scene(CHAIN)
    for name, took_ms in (("double", 2), ("negate", 3)):
        clock = chain.devices[name].clock
        chain.devices[name].runtime.during = lambda clock=clock, took_ms=took_ms: clock.advance_ms(took_ms)
    chain.ask(1)
    chain.settle()
    ((_, lines, _),) = chain.answers
    assert b"compute;dur=5.000" in lines
    assert b"server-timing: step-double;dur=2.000, step-negate;dur=3.000\r\n" in lines


def test_a_pipeline_follows_the_versions_of_its_models(scene: Make) -> None:
    """Requests then use another version of equal signature; the error names one that does not fit, or none."""
    chain = scene(CHAIN)
    assert chain.pipeline.ready
    known = chain.models["negate"]
    chain.models["negate"] = ServedModel({"1": ServedVersion(VersionStatus(1, "END", "unloaded"))}, None)
    assert chain.pipeline.refresh()
    assert not chain.pipeline.ready
    version = chain.pipeline.served_model(2).versions["1"]
    assert (version.service, version.status.state) == (None, "END")
    assert version.status.reason == "step negate: the model negate is not served"
    chain.models["negate"] = known
    assert chain.pipeline.refresh()
    assert chain.pipeline.served_model(2).versions["1"].service is chain.pipeline
    chain.ask(1)
    chain.settle()
    with Joined(PuppetRuntime(SUMS, lambda inputs: [inputs[0]])) as other:
        service = puppet_service("negate")
        service.attach(other.exchange)
        chain.models["negate"] = ServedModel.of(service, 1)
        chain.pipeline.refresh()
        assert "the pipeline chain: negate has no input 'x'" in chain.pipeline.unready_reason
    assert [status for status, *_ in chain.answers] == [200]


class _Quota:
    """A limit of one row, for any caller."""

    def __init__(self) -> None:
        self.claimed: list[int] = []

    def of(self, caller: CallerTerms) -> _Quota:
        del caller
        return self

    def check(self) -> None:
        """All may ask."""

    def check_rows(self, rows: int) -> None:
        del rows
        if self.claimed:
            raise RequestOverQuota("no more rows")

    def draw(self, rows: int) -> None:
        self.claimed.append(rows)

    def lines(self, status: int) -> bytes:
        del status
        return b""


def test_the_rows_of_a_request_count_once_for_its_caller(scene: Make) -> None:
    """Steps claim nothing of the caller's limit, and a refused request gives its queued rows back."""
    chain, quota = scene(CHAIN), _Quota()
    chain.pipeline.limits = msgspec.structs.replace(chain.pipeline.limits, quotas=cast("Any", quota))
    body = json.dumps({"data": [[2, 2]]}).encode()
    for _ in range(2):
        chain.pipeline.score(body, None, chain.note, 0, options=CallOptions(CallerTerms("ann", 7)))
    chain.settle()
    assert quota.claimed == [1]
    assert sorted(status for status, *_ in chain.answers) == [200, 413]
    assert chain.devices["double"].runtime.rows_run == [2]
    assert chain.pipeline.idle


def test_the_rows_of_a_step_count_for_its_group_of_models(scene: Make) -> None:
    """With or without caller terms, a limit of models holds within pipelines, and its error is the answer."""
    chain, quota = scene(CHAIN), _Quota()
    negate = chain.service("negate")
    urgency = DEFAULT_URGENCY._replace(shared=cast("Quota", quota))
    negate.limits = msgspec.structs.replace(negate.limits, urgency=urgency)
    body = json.dumps({"data": [[2, 2]]}).encode()
    for options in (CallOptions(CallerTerms("ann", 7)), None):
        chain.pipeline.score(body, None, chain.note, 0, options=options)
        chain.settle()
    assert quota.claimed == [1]
    assert [status for status, *_ in chain.answers] == [200, 413]


@pytest.mark.parametrize("kept", [True, False])
def test_a_step_has_a_span_below_that_of_its_request(scene: Make, kept: bool) -> None:
    """All are of the request's trace, or none is; a step begins no trace of its own, and has no line in the log."""
    chain, fd = scene(CHAIN), MetricMemory.create()
    numbers = count(1)
    tracing = Tracing(TraceWriter(fd, 3), Sampling(1.0), lambda _: next(numbers))
    log = Mock(spec=Observer, observes_steps=False)
    log.accepts.return_value = True
    observers = Observers([tracing, log])
    for service in (chain.pipeline, chain.service("double"), chain.service("negate")):
        observers.observe(service)
    trace = f"00-{7:032x}-{8:016x}-{int(kept):02x}".encode()
    chain.pipeline.score(b'{"data": [[1, 1]]}', RequestIds(b"mine", traceparent=trace), chain.note, 0)
    chain.settle()
    spans, _ = TraceReader(fd).read()
    os.close(fd)
    assert [status for status, *_ in chain.answers] == [200]
    assert {one.trace_id for one in spans} == ({f"{7:032x}"} if kept else set())
    if kept:
        by_model = {one.model: one for one in spans}
        assert {one.parent_id for name, one in by_model.items() if name != "chain"} == {
            by_model["chain"].span_id
        }
        assert by_model["chain"].parent_id == f"{8:016x}"
        assert {one.request_id for one in spans} == {"mine"}
    assert [call.args[0].service.name for call in log.record.call_args_list] == ["chain"]


def test_a_step_runs_again_where_its_model_has_another_replica(scene: Make) -> None:
    """A device that dies costs the request of a pipeline no more than one to the model."""
    chain = scene(CHAIN)
    first, service = chain.devices["negate"], chain.service("negate")
    with Joined(PuppetRuntime(answer=lambda inputs: [-inputs[0]])) as second:
        chain.ask(1)
        chain.devices["double"].settle()
        service.attach(second.exchange)
        service.detach(first.exchange)
        first.exchange.close()
        second.settle()
        ((status, _, answer),) = chain.answers
        assert (status, answer) == (200, [[-2.0, -3.0]])


@pytest.mark.parametrize(
    ("owner", "name", "fault", "status", "message"),
    [
        (
            Progress,
            "finish",
            RuntimeError("a fault"),
            500,
            "Step double: An unexpected internal error occurred.",
        ),
        (PipelineExchange, "_answer", MemoryError(), 503, "There is no memory for this request now."),
    ],
)
def test_a_fault_between_steps_is_answered(
    scene: Make,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    fault: Exception,
    status: int,
    message: str,
) -> None:
    """No fault of ours leaves a request without an answer: nothing of it is in any arena by then."""
    monkeypatch.setattr(owner, name, Mock(side_effect=fault))
    chain = scene(CHAIN)
    chain.ask(1)
    chain.settle()
    ((got, _, answer),) = chain.answers
    assert got == status
    assert answer["message"].startswith(message)
    assert chain.pipeline.idle


def test_the_load_of_a_pipeline_is_that_of_its_busiest_model(scene: Make) -> None:
    """Balancers send where the step is that will make requests wait."""
    chain = scene(CHAIN)
    reports = PipelineLoadReports(chain.memory, 2, lambda: chain.pipeline.models)
    assert b"application_utilization=0.0" in reports.line("TEXT")
    for name, load in (("double", 0.3), ("negate", 0.7)):
        load_reports = Mock(utilization=load)
        load_reports.line.return_value = name.encode()
        chain.service(name).load_reports = load_reports
    assert reports.line("TEXT") == b"negate"


def test_steps_go_to_versions_by_their_weights(scene: Make) -> None:
    """A canary gets its share of the requests of pipelines, unless its tensors are others."""
    chain = scene(CHAIN)
    default = chain.service("negate")
    canary, other = puppet_service("negate", version="2"), puppet_service("negate", version="3")
    with (
        Joined(PuppetRuntime(answer=lambda inputs: [inputs[0] + 1])) as second,
        Joined(PuppetRuntime(SUMS, lambda inputs: [inputs[0]])) as third,
    ):
        canary.attach(second.exchange)
        other.attach(third.exchange)
        versions = {
            service.version: ServedVersion(VersionStatus(1, "AVAILABLE"), service)
            for service in (default, canary, other)
        }
        chain.models["negate"] = ServedModel(versions, "1", split=Split({"1": 1, "2": 1, "3": 1}))
        chain.pipeline.refresh()
        for _ in range(6):
            chain.ask(1)
            chain.devices["double"].settle()
            chain.devices["negate"].settle()
            second.settle()
        assert third.runtime.batches == []
    answers = [answer for _, _, answer in chain.answers]
    assert (answers.count([[3.0, 4.0]]), answers.count([[-2.0, -3.0]])) == (2, 4)


def test_step_with_state_gets_the_sequence_of_its_request(scene: Make) -> None:
    """Callers send the sequence to the pipeline, whose signature then has sequences."""
    chain = scene(CHAIN)
    negate = chain.service("negate")
    assert negate.signature is not None
    negate.signature = replace(negate.signature, sequences=True)
    chain.pipeline.refresh()
    assert chain.pipeline.signature is not None
    assert chain.pipeline.signature.sequences
    submitted = Mock(wraps=negate.submit)
    negate.submit = submitted  # type: ignore[method-assign]
    step = SequenceStep(42, start=True)
    chain.pipeline.score(
        b'{"data": [[1, 1]]}', None, chain.note, 0, options=CallOptions(DEFAULT, sequence=step)
    )
    chain.settle()
    assert [status for status, *_ in chain.answers] == [200]
    assert submitted.call_args.args[0].sequence is step
