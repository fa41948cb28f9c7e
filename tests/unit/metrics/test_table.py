"""The table of metrics: places of words, sums over processes, and values that are shown."""

import collections

import numpy as np
from tests.puppets import metric_memory

from stoker.metrics import table
from stoker.metrics.layout import MODEL_SLOTS, STAGE_BOUNDS_S, TARGET_REASONS
from stoker.metrics.metric import Counter, Histogram, Metric, Region, declare_in, if_any, if_counted


def test_each_word_of_a_page_belongs_to_one_metric() -> None:
    """The words of a slot are shared out without gaps, and those of the page follow all slots."""
    for region, start in ((table.SLOT, 0), (table.PAGE, MODEL_SLOTS * table.SLOT_WORDS)):
        words = [word for metric in region.metrics for word in range(metric.offset, metric.end)]
        assert words == list(range(start, region.end))


def test_names_of_metrics_occur_once() -> None:
    """No two declarations have the same name."""
    names = collections.Counter(
        metric.name
        for metric in (*vars(table).values(), *table.GPU_METRICS.values())
        if isinstance(metric, Metric) and metric.name
    )
    assert {name for name, count in names.items() if count > 1} == set()


def test_gauges_are_cleared_when_a_process_takes_over_unless_they_last() -> None:
    """A frontend that takes over clears its rows in flight; the number of ready replicas stays."""
    memory = metric_memory()
    metrics = memory.page(0).model(0)
    metrics.set_in_flight_rows(3)
    metrics.set_ready_replicas(2)
    metrics.count_padding(5)
    metrics.clear_gauges()
    totals = memory.totals().model(0)
    assert (totals.rows_in_flight, totals.ready_replicas, totals.padding_rows) == (0, 2, 5)


def test_lowest_value_of_several_processes_leaves_out_those_without_one() -> None:
    """Of caps and expiries the lowest counts, 0 if no process has any."""
    memory = metric_memory()
    memory.page(0).set_certificate_expiry("grpc", 90)
    memory.page(1).set_certificate_expiry("grpc", 70)
    memory.page(2).set_certificate_expiry("http", 0)
    words = memory.totals().words
    assert table.CERTIFICATE_EXPIRIES.values(words) == {("grpc",): 70}


def test_values_follow_labels_and_units() -> None:
    """Words are read in the order of the labels' values, and divided by the unit."""
    region = Region(2)
    first = declare_in(region, Counter)("a", "", {"x": ("p", "q"), "y": ("r", "s")})
    second = declare_in(region, Histogram)("b", "", bounds=(1, 2), unit=1000)
    words = np.array([0, 0, 1, 2, 3, 4, 5, 6, 7, 8000])
    assert (region.end, first.word("q", "r")) == (10, 4)
    assert first.values(words) == {("p", "r"): 1, ("p", "s"): 2, ("q", "r"): 3, ("q", "s"): 4}
    histogram = second.histogram(words)
    assert (histogram.counts, histogram.sum) == ([5, 6, 7], 8.0)


def test_values_without_a_count_are_left_out_where_the_rule_says_so() -> None:
    """`if_counted` looks at the value, `if_any` at other metrics."""
    region = Region()
    declare = declare_in(region, Counter)
    first = declare("a", "", {"x": ("p", "q")}, is_shown=if_counted)
    second = declare("b", "", is_shown=if_any(first))
    assert first.values([0, 7, 3]) == {("q",): 7}
    assert second.values([0, 7, 3]) == {(): 3}
    assert second.values([0, 0, 3]) == {}


def test_reasons_of_targets_are_shown_for_models_with_targets() -> None:
    """Other models show the four reasons that all models have."""
    memory = metric_memory()
    metrics = memory.page(0).model(0)
    metrics.observe_batch(1, "idle", int(STAGE_BOUNDS_S[0]))
    shown = {reason for (reason,) in table.DISPATCHES.values(memory.totals().model(0).words)}
    assert shown.isdisjoint(TARGET_REASONS)
    metrics.count_answers(0, 1, 1)
    shown = {reason for (reason,) in table.DISPATCHES.values(memory.totals().model(0).words)}
    assert shown.issuperset(TARGET_REASONS)
