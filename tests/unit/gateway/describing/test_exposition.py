"""The Prometheus exposition of the counters, read back by Prometheus's own parser."""

import os
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from stoker.gateway.describing.exposition import CONTENT_TYPE_LATEST, render, render_load
from stoker.gateway.scoring.service import Service
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.gpu.facts import THROTTLE_REASONS, GpuReading
from stoker.metrics.layout import (
    BATCH_BOUNDS_ROWS,
    FIRST_DEVICE_PAGE,
    REASONS,
    REJECTIONS,
    STAGE_BOUNDS_S,
    STAGES,
    SUPERVISOR_PAGE,
)
from stoker.metrics.load import LoadMeter
from stoker.metrics.memory import MetricMemory
from stoker.tensors import Signature
from stoker.verdict import Verdict
from stoker.versions import Standing

# Names and labels are an interface: dashboards and alerts are built on them.
DOCUMENTED = {
    "stoker_requests": ("counter", {"model", "version", "status"}),
    "stoker_rejections": ("counter", {"model", "version", "reason"}),
    "stoker_rows": ("counter", {"model", "version"}),
    "stoker_rows_in_flight": ("gauge", {"model", "version"}),
    "stoker_queue_rows": ("gauge", {"model", "version"}),
    "stoker_load": ("gauge", {"model", "version"}),
    "stoker_capacity_rows_per_second": ("gauge", {"model", "version"}),
    "stoker_ready_replicas": ("gauge", {"model", "version"}),
    "stoker_collected_records": ("counter", {"model", "version"}),
    "stoker_collection_dropped": ("counter", {"model", "version", "reason"}),
    "stoker_dispatches": ("counter", {"model", "version", "reason"}),
    "stoker_batch_rows": ("histogram", {"model", "version"}),
    "stoker_batch_padding_rows": ("counter", {"model", "version"}),
    "stoker_batching_info": ("gauge", {"model", "version", "batched", "how"}),
    "stoker_batch_cap_rows": ("gauge", {"model", "version"}),
    "stoker_isolation_audits": ("counter", {"model", "version", "result"}),
    "stoker_in_target": ("counter", {"model", "version"}),
    "stoker_answers": ("counter", {"model", "version"}),
    "stoker_expected_over_actual": ("histogram", {"model", "version"}),
    "stoker_non_finite_answers": ("counter", {"model", "version"}),
    "stoker_compared_answers": ("counter", {"model", "version", "result"}),
    "stoker_compared_flips": ("counter", {"model", "version"}),
    "stoker_version_share_ratio": ("gauge", {"model", "version"}),
    "stoker_takeover_decisions": ("counter", {"model", "version", "decision"}),
    "stoker_device_busy_seconds": ("counter", {"device", "model", "version"}),
    "stoker_turn_wait_seconds": ("histogram", {"model", "version"}),
    "stoker_batch_mean_seconds": ("gauge", {"model", "version", "rows"}),
    "stoker_batch_mean_rows": ("gauge", {"model", "version", "rows"}),
    "stoker_stage_seconds": ("histogram", {"model", "version", "stage"}),
    "stoker_process_restarts": ("counter", {"process"}),
    "stoker_accept_failures": ("counter", set()),
    "stoker_large_body_bytes": ("gauge", set()),
    "stoker_large_body_budget_bytes": ("gauge", set()),
    "stoker_keys_generation": ("gauge", set()),
    "stoker_gpu_memory_used_bytes": ("gauge", {"gpu", "uuid"}),
    "stoker_gpu_memory_total_bytes": ("gauge", {"gpu", "uuid"}),
    "stoker_gpu_memory_free_bytes": ("gauge", {"gpu", "uuid"}),
    "stoker_gpu_utilization_ratio": ("gauge", {"gpu", "uuid"}),
    "stoker_gpu_power_watts": ("gauge", {"gpu", "uuid"}),
    "stoker_gpu_power_limit_watts": ("gauge", {"gpu", "uuid"}),
    "stoker_gpu_temperature_celsius": ("gauge", {"gpu", "uuid"}),
    "stoker_gpu_energy_joules": ("counter", {"gpu", "uuid"}),
    "stoker_gpu_throttle_reason": ("gauge", {"gpu", "uuid", "reason"}),
    # Triton's.
    "nv_gpu_memory_used_bytes": ("gauge", {"gpu_uuid"}),
    "nv_gpu_memory_total_bytes": ("gauge", {"gpu_uuid"}),
    "nv_gpu_utilization": ("gauge", {"gpu_uuid"}),
    "nv_gpu_power_usage": ("gauge", {"gpu_uuid"}),
    "nv_gpu_power_limit": ("gauge", {"gpu_uuid"}),
    "nv_energy_consumption": ("counter", {"gpu_uuid"}),
}

GPU = GpuReading(2, "GPU-whole", 80 << 30, 5 << 30, 75 << 30, 37, 412_500, 700_000, 61, 9_876_543_210, 0x24)


@pytest.fixture
def memory() -> MetricMemory:
    """The counters of a server that has done something: two models, a restart, a GPU."""
    fd = MetricMemory.create()
    memory = MetricMemory(fd)
    os.close(fd)
    frontend = memory.page(0).model(1)
    for parse_ns in (40_000, 60_000, 10**11):
        frontend.note_scored(2, parse_ns, 10 * parse_ns)
    frontend.flush()
    frontend.count_request(503)
    frontend.count_request(418)
    frontend.count_rejection("overloaded")
    frontend.set_in_flight_rows(6)
    frontend.count_collected(5)
    frontend.count_collection_dropped("write_failed", 2)
    device = memory.page(FIRST_DEVICE_PAGE).model(1)
    device.observe_batch(3, "full", 2_000_000)
    device.observe_batch(4, "idle", 3_000_000)
    device.note_queued(np.array([1_000_000, 2_000_000]))
    device.flush_queued()
    device.set_queued_rows(9)
    device.count_padding(7)
    device.count_answers(5, 3, 0.95)
    device.count_audit("passed")
    device.count_audit("failed")
    device.count_audit("passed")
    device.count_non_finite(11)
    device.set_batch_cap_rows(256)
    memory.page(FIRST_DEVICE_PAGE).set_device(2)
    device.count_busy(1_500_000_000)
    device.observe_turn_wait(2_000_000)
    device.learn_batch_time(5, 4_000_000)
    memory.page(FIRST_DEVICE_PAGE + 1).model(1).set_batch_cap_rows(64)
    supervisor = memory.page(SUPERVISOR_PAGE)
    supervisor.count_restart("device")
    supervisor.model(1).set_ready_replicas(3)
    supervisor.set_gpus([GPU, GpuReading(3, "GPU-divided", memory_total_bytes=80 << 30)])
    return memory


def families(memory: MetricMemory, *models: str, meter: LoadMeter | None = None) -> dict[str, Metric]:
    """The parsed exposition by metric name."""
    signature = Signature((), (), verdict=Verdict(True, "tested", "tested with companions in 9 batches", 9))
    service = cast(Service, SimpleNamespace(signature=signature))
    served = {
        name: ServedModel({"3": ServedVersion(Standing(slot, "AVAILABLE"), service)}, "3")
        for slot, name in enumerate(models)
    }
    text = render(memory, served, meter or LoadMeter(memory)).decode()
    return {metric.name: metric for metric in text_string_to_metric_families(text)}


def value(metric: Metric, sample: str, **labels: str) -> float:
    """The value of the one sample with this name and these labels, of version 3 of a model."""
    if "model" in labels:
        labels["version"] = "3"
    (found,) = [s.value for s in metric.samples if s.name == sample and s.labels == labels]
    return found


def test_names_types_and_labels_are_the_documented_ones(memory: MetricMemory) -> None:
    """Nothing is missing, nothing is there that nobody knows, and everything says what it is."""
    parsed = families(memory, "first", "digits")
    assert {name: metric.type for name, metric in parsed.items()} == {
        name: kind for name, (kind, _) in DOCUMENTED.items()
    }
    for name, metric in parsed.items():
        assert metric.documentation.endswith(".")
        assert {frozenset(sample.labels) - {"le"} for sample in metric.samples} == {
            frozenset(DOCUMENTED[name][1])
        }


def test_the_load_alone_is_two_lines(memory: MetricMemory) -> None:
    """What somebody asks of a thousand servers a second is short, and of all their models."""
    device = memory.page(FIRST_DEVICE_PAGE).model(1)
    device.learn_batch_time(256, 1_000_000_000)
    now_s = iter((0.0, 1.0))
    meter = LoadMeter(memory, lambda: next(now_s))
    device.observe_batch(64, "idle", 1)
    versions = {"3": ServedVersion(Standing(1, "AVAILABLE"), cast(Service, object()))}
    gone = {"1": ServedVersion(Standing(2, "END"))}
    text = render_load({"digits": ServedModel(versions, "3"), "gone": ServedModel(gone, None)}, meter)
    # 64 came and 9 wait, of 256 a second.
    assert text == b'stoker_load 0.2852\nstoker_rejections_total{reason="overloaded"} 1\n'
    assert len(text) <= 300
    assert [metric.name for metric in text_string_to_metric_families(text.decode())] == [
        "stoker_load",
        "stoker_rejections_total",
    ]


def test_the_values_are_those_of_the_counters(memory: MetricMemory) -> None:
    """Each model's numbers appear under its name."""
    parsed = families(memory, "first", "digits")
    for labels, expected in (
        ({"model": "digits", "status": "200"}, 3),
        ({"model": "digits", "status": "503"}, 1),
        ({"model": "digits", "status": "other"}, 1),
        ({"model": "first", "status": "200"}, 0),
    ):
        assert value(parsed["stoker_requests"], "stoker_requests_total", **labels) == expected
    assert value(parsed["stoker_rows"], "stoker_rows_total", model="digits") == 6
    busy = parsed["stoker_device_busy_seconds"]
    assert value(busy, "stoker_device_busy_seconds_total", model="digits", device="cuda:2") == 1.5
    info = parsed["stoker_batching_info"]
    assert value(info, "stoker_batching_info", model="digits", batched="true", how="tested") == 1
    assert value(parsed["stoker_rows_in_flight"], "stoker_rows_in_flight", model="digits") == 6
    assert value(parsed["stoker_queue_rows"], "stoker_queue_rows", model="digits") == 9
    assert value(parsed["stoker_batch_padding_rows"], "stoker_batch_padding_rows_total", model="digits") == 7
    assert value(parsed["stoker_batch_cap_rows"], "stoker_batch_cap_rows", model="digits") == 64
    assert value(parsed["stoker_batch_cap_rows"], "stoker_batch_cap_rows", model="first") == 0
    audits = parsed["stoker_isolation_audits"]
    for result, count in (("passed", 2), ("failed", 1), ("skipped", 0)):
        assert value(audits, "stoker_isolation_audits_total", model="digits", result=result) == count
    non_finite = parsed["stoker_non_finite_answers"]
    assert value(non_finite, "stoker_non_finite_answers_total", model="digits") == 11
    assert value(parsed["stoker_ready_replicas"], "stoker_ready_replicas", model="digits") == 3
    assert value(parsed["stoker_ready_replicas"], "stoker_ready_replicas", model="first") == 0
    assert value(parsed["stoker_process_restarts"], "stoker_process_restarts_total", process="device") == 1
    assert value(parsed["stoker_process_restarts"], "stoker_process_restarts_total", process="frontend") == 0
    collected, dropped = parsed["stoker_collected_records"], parsed["stoker_collection_dropped"]
    assert value(collected, "stoker_collected_records_total", model="digits") == 5
    for reason, records in (("queue_full", 0), ("write_failed", 2)):
        assert value(dropped, "stoker_collection_dropped_total", model="digits", reason=reason) == records


@pytest.mark.parametrize(
    ("name", "alias", "expected"),
    [
        ("stoker_gpu_memory_used_bytes", "nv_gpu_memory_used_bytes", 5 << 30),
        ("stoker_gpu_memory_total_bytes", "nv_gpu_memory_total_bytes", 80 << 30),
        ("stoker_gpu_memory_free_bytes", None, 75 << 30),
        ("stoker_gpu_utilization_ratio", "nv_gpu_utilization", 0.37),
        ("stoker_gpu_power_watts", "nv_gpu_power_usage", 412.5),
        ("stoker_gpu_power_limit_watts", "nv_gpu_power_limit", 700),
        ("stoker_gpu_temperature_celsius", None, 61),
        # The parser adds the ending that Triton leaves out.
        ("stoker_gpu_energy_joules_total", "nv_energy_consumption_total", 9_876_543.21),
    ],
)
def test_gpus_are_told_in_base_units(
    memory: MetricMemory, name: str, alias: str | None, expected: float
) -> None:
    """Under Stoker's names and Triton's; what a driver does not say of a GPU has no sample."""
    parsed = families(memory)
    family = parsed[name.removesuffix("_total")]
    assert value(family, name, gpu="2", uuid="GPU-whole") == expected
    assert {sample.labels["gpu"] for sample in family.samples} == (
        {"2", "3"} if name == "stoker_gpu_memory_total_bytes" else {"2"}
    )
    if alias is not None:
        aliased = parsed[alias.removesuffix("_total")]
        assert value(aliased, alias, gpu_uuid="GPU-whole") == expected
        assert len(aliased.samples) == len(family.samples)


def test_triton_s_counter_has_its_exact_name(memory: MetricMemory) -> None:
    """Without the ending `_total`, and as a counter all the same."""
    lines = render(memory, {}, LoadMeter(memory)).decode().splitlines()
    assert "# TYPE nv_energy_consumption counter" in lines
    assert 'nv_energy_consumption{gpu_uuid="GPU-whole"} 9.87654321e+06' in lines


def test_each_throttle_reason_is_a_series(memory: MetricMemory) -> None:
    """1 or 0 for each, so that an alert has something to compare with; none where the driver does not say."""
    samples = families(memory)["stoker_gpu_throttle_reason"].samples
    assert {sample.labels["uuid"] for sample in samples} == {"GPU-whole"}
    held = {sample.labels["reason"]: sample.value for sample in samples}
    assert held == {
        reason: float(reason in ("sw_power_cap", "sw_thermal_slowdown")) for reason in THROTTLE_REASONS
    }


def test_every_reason_is_there_from_the_start(memory: MetricMemory) -> None:
    """A rate over a counter needs its zero: reasons appear before they happen."""
    parsed = families(memory, "first", "digits")
    for reason in REJECTIONS:
        expected = 1 if reason == "overloaded" else 0
        name = "stoker_rejections_total"
        assert value(parsed["stoker_rejections"], name, model="digits", reason=reason) == expected
        assert value(parsed["stoker_rejections"], name, model="first", reason=reason) == 0
    for reason in REASONS:
        name = "stoker_dispatches_total"
        assert value(parsed["stoker_dispatches"], name, model="digits", reason=reason) == (
            1 if reason in ("full", "idle") else 0
        )


def test_histograms_are_cumulative(memory: MetricMemory) -> None:
    """Buckets count all that is not above their bound; +Inf, count and sum agree with them."""
    parsed = families(memory, "first", "digits")
    sizes = {
        float(sample.labels["le"]): sample.value
        for sample in parsed["stoker_batch_rows"].samples
        if sample.name.endswith("_bucket") and sample.labels["model"] == "digits"
    }
    assert sizes == {**{float(bound): 2.0 if bound >= 4 else 0.0 for bound in BATCH_BOUNDS_ROWS}, np.inf: 2.0}
    assert value(parsed["stoker_batch_rows"], "stoker_batch_rows_count", model="digits") == 2
    assert value(parsed["stoker_batch_rows"], "stoker_batch_rows_sum", model="digits") == 7
    stages = parsed["stoker_stage_seconds"]
    parse = {
        float(sample.labels["le"]): sample.value
        for sample in stages.samples
        if sample.name.endswith("_bucket") and sample.labels["stage"] == "parse" and sample.value
    }
    assert parse == {5e-5: 1, **dict.fromkeys(STAGE_BOUNDS_S[1:], 2), np.inf: 3}
    counts = {"parse": 3, "queue": 2, "compute": 2, "total": 3}
    for stage in STAGES:
        labels = {"model": "digits", "stage": stage}
        assert value(stages, "stoker_stage_seconds_count", **labels) == counts[stage]
    assert value(stages, "stoker_stage_seconds_sum", model="digits", stage="compute") == pytest.approx(0.005)


def test_awkward_names_are_escaped(memory: MetricMemory) -> None:
    """Whatever a label holds, the text stays parseable."""
    parsed = families(memory, 'a"b\\c\nd', "naïve")
    assert {sample.labels["model"] for sample in parsed["stoker_rows"].samples} == {'a"b\\c\nd', "naïve"}


def test_the_content_type_is_prometheus_text() -> None:
    """Scrapers choose their parser by it."""
    assert CONTENT_TYPE_LATEST.startswith("text/plain; version=")


def test_only_models_with_targets_have_answers_in_time(memory: MetricMemory) -> None:
    """Who has none is not told that all answers, or none, were in time."""
    parsed = families(memory, "first", "digits")
    assert value(parsed["stoker_in_target"], "stoker_in_target_total", model="digits") == 3
    assert value(parsed["stoker_answers"], "stoker_answers_total", model="digits") == 5
    ratios = parsed["stoker_expected_over_actual"]
    assert value(ratios, "stoker_expected_over_actual_bucket", model="digits", le="0.9") == 0
    assert value(ratios, "stoker_expected_over_actual_bucket", model="digits", le="1.0") == 1
    assert value(ratios, "stoker_expected_over_actual_sum", model="digits") == 0.95
    assert {sample.labels["model"] for sample in parsed["stoker_answers"].samples} == {"digits"}
