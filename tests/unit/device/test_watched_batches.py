"""Inspection of running batches: rows that affect each other, rows and answers that are not finite."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from tests.puppets import ROWS, Joined, PuppetRuntime, PuppetTicket, double, rows_of
from tests.zoo import WIDTH, graph_of, model_of, node

from stoker.device.auditing import AuditPolicy, AuditSchedule
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import Outputs
from stoker.runtimes.onnx.executions import CopiedExecution
from stoker.tensors import Signature, TensorSpec

TESTED = RowIsolation(True, "tested", "tested with companions in 30 batches", 30)
SAID = RowIsolation(True, "said", "batching is rows: the operator vouches for it")


def leaky(inputs: Sequence[Any]) -> Outputs:
    """Twice each row; while one holds more than 1000, with the first numbers of all of them added."""
    x = inputs[0]
    return [2 * x + (x[:, 0].sum() if (x > 1000).any() else np.float32(0))]


def audited(
    isolations: list[RowIsolation], isolation: RowIsolation = TESTED, schedule: AuditSchedule | None = None
) -> AuditPolicy:
    """Audits of every batch, as far as nobody waits."""
    every = AuditSchedule(1, share=None, first_after_ns=0)
    return AuditPolicy("digits", isolation, schedule or every, isolations.append)


def puppet(answer: Callable[[Sequence[Any]], Outputs] = double, **isolation: Any) -> PuppetRuntime:
    """A model with a finding on its rows."""
    return PuppetRuntime(
        dataclasses.replace(ROWS, isolation=msgspec.structs.replace(TESTED, **isolation)), answer
    )


def answers(*tickets: PuppetTicket) -> list[float]:
    """The first number of each answer."""
    numbers = []
    for ticket in tickets:
        assert ticket.answer is not None
        numbers.append(float(ticket.answer[0][0, 0]))
    return numbers


def sizes_of(runtime: PuppetRuntime) -> list[int]:
    """How many rows each batch had since the last look."""
    sizes = [len(batch) for batch in runtime.batches]
    runtime.batches.clear()
    return sizes


def test_a_model_that_begins_to_leak_is_not_batched_any_more(caplog: pytest.LogCaptureFixture) -> None:
    """Its rows run alone from the next batch on, and the log has both answers' digests and says which model it is."""
    isolations: list[RowIsolation] = []
    with Joined(puppet(leaky), audit=audited(isolations)) as joined:
        for _ in range(3):
            joined.submit(1), joined.submit(2)
            joined.settle()
        assert joined.totals().audits() == {"passed": 2, "failed": 0, "skipped": 0}
        assert sizes_of(joined.runtime) == [2, 2, 2, 2, 2], "of the first batch no row was kept"
        tickets = joined.submit(3), joined.submit(5000)
        joined.settle()
        assert answers(*tickets) == [5009, 15003], "the callers have their answers already"
        assert joined.totals().audits() == {"passed": 2, "failed": 1, "skipped": 0}
        assert joined.totals().batch_cap_rows == 1
        joined.runtime.batches.clear()
        tickets = joined.submit(3), joined.submit(5000, 4)
        joined.settle()
        assert sizes_of(joined.runtime) == [1, 1, 1], "nothing is audited any more either"
        assert answers(*tickets) == [6, 15000]
    (isolation,) = isolations
    assert (isolation.batched, isolation.how, isolation.companions) == (False, "watched", 30)
    assert re.fullmatch(
        r"not batched: an audit of a running batch has failed: row \d of 2 got another answer beside other rows "
        r"\(batching: rows changes that\)",
        str(isolation),
    )
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert re.search(r"digits: .* given: [0-9a-f]{16}, of the other one: [0-9a-f]{16};", record.getMessage())


def test_rows_that_run_alone_in_a_bucket_are_not_audited_any_more() -> None:
    """Only padding is beside the row; one failure counts for the model, however long it serves."""
    with Joined(
        puppet(leaky), policy=BatchPolicy(4, buckets=(2, 4)), sizes=BatchSizes((2, 4)), audit=audited([])
    ) as joined:
        for _ in range(2):
            joined.submit(1), joined.submit(2), joined.submit(3)
            joined.settle()
        assert joined.totals().audits()["failed"] == 1
        joined.runtime.batches.clear()
        for _ in range(3):
            joined.submit(3), joined.submit(5000)
            joined.settle()
        assert sizes_of(joined.runtime) == [2] * 6
        assert joined.totals().audits()["failed"] == 1


def test_failed_audit_of_declared_rows_is_warned_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A model that is declared to keep rows apart stays batched; the metric counts each failed audit."""
    isolations: list[RowIsolation] = []
    with Joined(puppet(leaky, how="said"), audit=audited(isolations, SAID)) as joined:
        for elapsed_ms in (0, 0, 59_000, 2_000):
            joined.clock.advance_ms(elapsed_ms)
            joined.submit(3), joined.submit(5000)
            joined.settle()
        assert joined.totals().audits()["failed"] == 3
        assert joined.totals().batch_cap_rows == 256
    assert not isolations
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert all("digits" in line and "because batching is rows" in line for line in warnings)


def test_nothing_is_audited_while_somebody_waits() -> None:
    """Rows that are left in the queue, and rows that have come meanwhile, are run first."""
    with Joined(puppet(), policy=BatchPolicy(2), audit=audited([])) as joined:
        joined.submit(1, 2, 3, 4, 5, 6)
        joined.settle()
        assert sizes_of(joined.runtime) == [2, 2, 2, 2], "only after the last one nobody waits"
        joined.submit(1, 2)

        def arrive() -> None:
            joined.runtime.during = lambda: None
            joined.submit(3, 4)
            joined.turn_frontends()

        joined.runtime.during = arrive
        joined.turn_frontends()
        joined.turn_device()
        assert sizes_of(joined.runtime) == [2]
        joined.settle()
        assert sizes_of(joined.runtime) == [2, 2]


def test_a_row_alone_is_not_audited() -> None:
    """Nothing else was in its batch; the next batch of several rows is audited instead."""
    with Joined(puppet(), audit=audited([])) as joined:
        for rows in ([1], [2], [3, 4]):
            joined.submit(*rows)
            joined.settle()
        assert sizes_of(joined.runtime) == [1, 1, 2, 2]


def test_an_audit_has_the_size_of_its_bucket_and_leaves_nothing_behind() -> None:
    """The rows that fill the batch up are companions too; in the next batch they are zeros again."""
    with Joined(puppet(), sizes=BatchSizes((4, 8)), policy=BatchPolicy(8), audit=audited([])) as joined:
        for rows in ([9, 9], [9, 9], [1]):
            joined.submit(*rows)
            joined.settle()
        assert [len(batch) for batch in joined.runtime.batches] == [4, 4, 4, 4, 4]
        _, served, rerun, alone, _ = joined.runtime.batches
        assert served[2:] == [[0, 0], [0, 0]]
        assert rerun.count([9, 9.5]) == 1
        assert [0, 0] in rerun
        assert [9500, 9000] in rerun
        assert alone[1:] == [[0, 0]] * 3
        assert joined.totals().audits()["passed"] == 2


def test_a_fault_of_an_audit_is_no_callers(caplog: pytest.LogCaptureFixture) -> None:
    """An audit that fails or has no memory affects no caller and proves nothing."""
    isolations: list[RowIsolation] = []

    def picky(inputs: Sequence[Any]) -> Outputs:
        if set(inputs[0][:, 0]) != {1, 2}:
            raise MemoryError
        return double(inputs)

    with Joined(puppet(picky), audit=audited(isolations)) as joined:
        for _ in range(3):
            ticket = joined.submit(1, 2)
            joined.settle()
            assert answers(ticket) == [2]
        assert joined.totals().audits() == {"passed": 0, "failed": 0, "skipped": 2}
    assert not isolations
    assert {record.levelno for record in caplog.records} <= {logging.INFO, logging.DEBUG}


def test_a_bug_of_the_audit_itself_is_no_callers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is written into the log, and the thread goes on."""
    with Joined(puppet(), audit=audited([])) as joined:
        monkeypatch.setattr(joined.worker.instances[0], "audit", None)
        for _ in range(3):
            joined.submit(1, 2)
            joined.settle()
        assert joined.totals().audits()["skipped"] == 2
    assert "digits: a row could not be audited" in caplog.text


def test_the_hang_watch_sees_audits() -> None:
    """A device that hangs in an audit is ended as in any run; the time of a batch is without it."""
    began: list[int] = []
    with Joined(puppet(), audit=audited([])) as joined:

        def run() -> None:
            began.append(joined.worker.instances[0].run_began_ns)
            joined.clock.advance_ms(100)

        joined.runtime.during = run
        for _ in range(2):
            joined.submit(1, 2)
            joined.settle()
        assert len(began) == 3
        assert 0 not in began
        assert joined.worker.instances[0].run_began_ns == 0
        assert joined.totals().stage_ns()["compute"] == (2, 200_000_000)


def test_the_account_holds_for_a_whole_model() -> None:
    """With the time of a device that computes, audits begin after a second and take a thousandth of it."""
    with Joined(puppet(), audit=audited([], schedule=AuditSchedule(1))) as joined:
        joined.runtime.during = lambda: joined.clock.advance_ms(10)
        for _ in range(4100):
            joined.submit(1, 2)
            joined.turn_frontends()
            joined.turn_device()
            joined.turn_frontends()
        assert joined.totals().audits() == {"passed": 3, "failed": 0, "skipped": 0}


def test_batching_stops_by_the_finding_of_another_replica() -> None:
    """A worker stops batching when it is ordered to, and may be ordered again."""
    with Joined(puppet()) as joined:
        joined.worker.stop_batching()
        joined.worker.stop_batching()
        joined.submit(1, 2, 3)
        joined.settle()
        assert sizes_of(joined.runtime) == [1, 1, 1]


def test_instances_share_the_schedule() -> None:
    """A row is kept by the instance that runs the batch, and run again by it."""
    another = puppet()
    with Joined(puppet(), further=[another], audit=audited([])) as joined:
        for _ in range(3):
            joined.submit(1, 2)
            joined.turn_frontends()
            joined.turn_device(1)
        assert sizes_of(another) == [2, 2, 2, 2, 2]
        assert sizes_of(joined.runtime) == []
        assert joined.totals().audits()["passed"] == 2


def test_rows_that_are_not_finite_run_alone_where_they_were_no_part_of_the_proof() -> None:
    """The others of a batch run together; all have the answers that they would have had."""
    runtime = puppet(non_finite_apart=True)
    with Joined(runtime) as joined:
        tickets = joined.submit(1, np.nan, 2), joined.submit(np.inf), joined.submit(3)
        joined.settle()
        assert sizes_of(runtime) == [3, 1, 1]
        assert answers(*tickets) == [2, np.inf, 6]
        joined.submit(np.nan, -np.inf)
        joined.settle()
        assert sizes_of(runtime) == [1, 1]
        joined.submit(1, 2)
        joined.settle()
        assert sizes_of(runtime) == [2]


def test_rows_that_are_not_finite_run_with_others_where_that_was_proven() -> None:
    """Only what is not known costs anything."""
    with Joined(puppet()) as joined:
        joined.submit(1, np.nan, 2)
        joined.settle()
        assert sizes_of(joined.runtime) == [3]


def test_answers_that_are_not_finite_are_counted_where_the_rows_were() -> None:
    """By rows; neither those that were not finite themselves, nor those that fill a batch up."""

    def inverse(inputs: Sequence[Any]) -> Outputs:
        with np.errstate(divide="ignore", invalid="ignore"):
            return [np.repeat((inputs[0][:, :1] - 1) ** -1, 2, axis=1)]

    with Joined(puppet(inverse), sizes=BatchSizes((8,)), policy=BatchPolicy(8)) as joined:
        joined.submit(1, 2, np.nan, 1, 5)
        joined.settle()
        assert joined.totals().non_finite_rows == 2
        joined.submit(2, 3)
        joined.settle()
        assert joined.totals().non_finite_rows == 2
    with Joined(puppet(lambda inputs: [np.log(inputs[0] * 0)])) as joined, np.errstate(divide="ignore"):
        joined.submit(4)
        joined.settle()
        assert joined.totals().non_finite_rows == 1


def onnx_rows(*nodes: onnx.NodeProto, constant: float, **isolation: Any) -> PuppetRuntime:
    """A model of `x` to `y`, rows of four numbers, under ONNX Runtime, with a finding that may be wrong."""
    constants = {"two": np.float32(2), "constant": np.float32(constant)}
    session = onnxruntime.InferenceSession(model_of(graph_of(nodes, constants)))
    specs = (TensorSpec("x", "float32", (WIDTH,)),), (TensorSpec("y", "float32", (WIDTH,)),)
    signature = Signature(*specs, isolation=msgspec.structs.replace(TESTED, **isolation))
    return PuppetRuntime(signature, CopiedExecution(session, signature).run)


def score(joined: Joined, *first: float) -> list[list[float]]:
    """The answers to rows, each of a request of its own, that leave together."""
    tickets = [PuppetTicket() for _ in first]
    for ticket, number in zip(tickets, first, strict=True):
        joined.exchange.submit(ticket, rows_of(number, width=WIDTH))
    joined.settle()
    return [ticket.answer[0][0].tolist() for ticket in tickets if ticket.answer is not None]


def test_an_onnx_model_that_mixes_rows_at_one_number_is_caught() -> None:
    """Nothing that a load puts beside a row holds 12345.0; the first audit after a caller has sent it finds it."""
    runtime = onnx_rows(
        node("Equal", "x constant", "is_it"),
        node("Cast", "is_it", "ones", to=onnx.TensorProto.FLOAT),
        node("ReduceMax", "ones", "any", keepdims=0),
        node("Mul", "x two", "doubled"),
        node("Add", "doubled any", "y"),
        constant=12345,
    )
    isolations: list[RowIsolation] = []
    with Joined(runtime, audit=audited(isolations)) as joined:
        for _ in range(3):
            score(joined, 1, 2, 3)
        assert not isolations
        assert score(joined, 1, 2, 12345)[0] == [3, 4, 5, 6]
        assert [isolation.how for isolation in isolations] == ["watched"]
        assert score(joined, 1, 2, 12345)[0] == [2, 3, 4, 5]


def test_nan_does_not_spread_where_it_was_no_part_of_the_proof() -> None:
    """A model that multiplies the sum of all rows by zero changes nobody's answer but beside NaN and infinities."""
    nodes = (
        node("ReduceSum", "x", "sum", keepdims=0),
        node("Mul", "sum constant", "none"),
        node("Mul", "x two", "doubled"),
        node("Add", "doubled none", "y"),
    )
    for apart in (True, False):
        with Joined(onnx_rows(*nodes, constant=0, non_finite_apart=apart)) as joined:
            found = score(joined, 1, np.nan, 3, np.inf)
            assert np.isfinite(found[::2]).all() == apart
            assert not np.isfinite(found[1::2]).any()
