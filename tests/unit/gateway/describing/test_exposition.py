"""The Prometheus exposition of the counters, read back by Prometheus's own parser."""

import errno
import socket
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from prometheus_client import CONTENT_TYPE_LATEST, Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.puppets import metric_memory

from stoker.gateway.describing.exposition import render, render_load
from stoker.gateway.later.spool import Spool
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
    UNLOADED_SLOT,
)
from stoker.metrics.load import LoadMeter
from stoker.metrics.memory import MetricMemory
from stoker.row_isolation import RowIsolation
from stoker.settings.versions import VersionStatus
from stoker.tensors import Signature

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
    "stoker_in_target": ("counter", {"model", "version", "tier"}),
    "stoker_answers": ("counter", {"model", "version", "tier"}),
    "stoker_refusals": ("counter", {"model", "version", "reason", "tier"}),
    "stoker_expected_over_actual": ("histogram", {"model", "version"}),
    "stoker_non_finite_answers": ("counter", {"model", "version"}),
    "stoker_compared_answers": ("counter", {"model", "version", "result"}),
    "stoker_compared_flips": ("counter", {"model", "version"}),
    "stoker_version_share_ratio": ("gauge", {"model", "version"}),
    "stoker_takeover_decisions": ("counter", {"model", "version", "decision"}),
    "stoker_device_busy_seconds": ("counter", {"device", "model", "version"}),
    "stoker_caller_device_seconds": ("counter", {"caller"}),
    "stoker_turn_wait_seconds": ("histogram", {"model", "version"}),
    "stoker_batch_mean_seconds": ("gauge", {"model", "version", "rows"}),
    "stoker_batch_mean_rows": ("gauge", {"model", "version", "rows"}),
    "stoker_sequences": ("gauge", {"model", "version"}),
    "stoker_sequences_started": ("counter", {"model", "version"}),
    "stoker_sequences_ended": ("counter", {"model", "version", "reason"}),
    "stoker_cache_hits": ("counter", {"model", "version"}),
    "stoker_cache_misses": ("counter", {"model", "version"}),
    "stoker_cache_hit_seconds": ("counter", {"model", "version"}),
    "stoker_cache_miss_seconds": ("counter", {"model", "version"}),
    "stoker_cache_evictions": ("counter", {"model", "version"}),
    "stoker_cache_bytes": ("gauge", {"model", "version"}),
    "nv_cache_num_hits_per_model": ("counter", {"model", "version"}),
    "nv_cache_num_misses_per_model": ("counter", {"model", "version"}),
    "nv_cache_hit_duration_per_model": ("counter", {"model", "version"}),
    "nv_cache_miss_duration_per_model": ("counter", {"model", "version"}),
    "stoker_first_response_seconds": ("histogram", {"model", "version"}),
    "stoker_stage_seconds": ("histogram", {"model", "version", "stage"}),
    "stoker_process_restarts": ("counter", {"process"}),
    "stoker_accept_failures": ("counter", set()),
    "stoker_certificate_expiration_timestamp_seconds": ("gauge", {"protocol"}),
    "stoker_tls_handshake_failures": ("counter", {"protocol", "reason"}),
    "stoker_large_body_bytes": ("gauge", set()),
    "stoker_open_connections": ("gauge", {"protocol"}),
    "stoker_large_body_budget_bytes": ("gauge", set()),
    "stoker_keys_generation": ("gauge", set()),
    "stoker_traced_requests": ("counter", {"result"}),
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
    **{
        f"nv_inference_{name}": ("counter", {"model", "version"})
        for name in (
            "request_success",
            "count",
            "exec_count",
            "request_duration_us",
            "queue_duration_us",
            "compute_input_duration_us",
            "compute_infer_duration_us",
            "compute_output_duration_us",
        )
    },
    **{
        name: ("counter", {"model_name", "model_version", "hostname"})
        for name in (
            "ts_inference_requests",
            "ts_inference_latency_microseconds",
            "ts_queue_latency_microseconds",
        )
    },
    "nv_inference_request_failure": ("counter", {"model", "version", "reason"}),
    "nv_inference_pending_request_count": ("gauge", {"model", "version"}),
    "nv_gpu_memory_used_bytes": ("gauge", {"gpu_uuid"}),
    "nv_gpu_memory_total_bytes": ("gauge", {"gpu_uuid"}),
    "nv_gpu_utilization": ("gauge", {"gpu_uuid"}),
    "nv_gpu_power_usage": ("gauge", {"gpu_uuid"}),
    "nv_gpu_power_limit": ("gauge", {"gpu_uuid"}),
    "nv_energy_consumption": ("counter", {"gpu_uuid"}),
}

GPU = GpuReading(2, "GPU-whole", 80 << 30, 5 << 30, 75 << 30, 37, 412_500, 700_000, 61, 9_876_543_210, 0x24)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MetricMemory:
    """The counters of a server that has done something: two models, a restart, a GPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    memory = metric_memory()
    frontend = memory.page(0).model(1)
    for parse_ns in (40_000, 60_000, 10**11):
        frontend.note_scored(2, parse_ns, 10 * parse_ns)
    frontend.flush()
    frontend.count_request(503)
    frontend.count_request(418)
    frontend.count_rejection("overloaded")
    frontend.count_refusal("target", 2)
    frontend.set_in_flight_rows(6)
    frontend.count_cache(2_000_000, found=True)
    frontend.count_cache(1_000_000, found=False)
    frontend.count_cache_insertion(500_000)
    frontend.note_cache_size(4096, 3)
    memory.page(0).set_certificate_expiry("grpc", 4_000_000_000)
    memory.page(0).count_handshake_failure("grpc", "timeout")
    frontend.count_collected(5)
    frontend.count_collection_dropped("write_failed", 2)
    device = memory.page(FIRST_DEVICE_PAGE).model(1)
    device.observe_batch(3, "full", 2_000_000)
    device.observe_batch(4, "idle", 3_000_000)
    device.note_queued(np.array([1_000_000, 2_000_000]))
    device.flush_queued()
    device.set_queued_rows(9)
    device.count_padding(7)
    device.count_answers(1, 5, 3)
    device.count_answers(2, 4, 1)
    device.observe_expectation(0.95)
    device.count_audit("passed")
    device.count_audit("failed")
    device.count_audit("passed")
    device.count_non_finite(11)
    device.count_sequences(2, 5, 1, 2)
    device.set_batch_cap_rows(256)
    memory.page(FIRST_DEVICE_PAGE).set_device(2)
    device.count_busy(1_500_000_000, {0: 2, 7: 1})
    device.observe_turn_wait(2_000_000)
    device.observe_first_response(2_000_000)
    device.learn_batch_time(5, 4_000_000)
    memory.page(FIRST_DEVICE_PAGE + 1).model(1).set_batch_cap_rows(64)
    supervisor = memory.page(SUPERVISOR_PAGE)
    supervisor.count_restart("device")
    supervisor.model(1).set_ready_replicas(3)
    supervisor.set_gpus([GPU, GpuReading(3, "GPU-divided", memory_total_bytes=80 << 30)])
    return memory


def exposition(memory: MetricMemory, *models: str, meter: LoadMeter | None = None) -> str:
    """Return the exposition of version 3 of each model, in slots from 0."""
    signature = Signature(
        (), (), isolation=RowIsolation(True, "tested", "tested with companions in 9 batches", 9)
    )
    service = cast(Service, SimpleNamespace(signature=signature))
    served = {
        name: ServedModel({"3": ServedVersion(VersionStatus(slot, "AVAILABLE"), service)}, "3")
        for slot, name in enumerate(models)
    }
    return render(memory, served, meter or LoadMeter(memory)).decode()


def families(memory: MetricMemory, *models: str, meter: LoadMeter | None = None) -> dict[str, Metric]:
    """The parsed exposition by metric name."""
    text = exposition(memory, *models, meter=meter)
    return {metric.name: metric for metric in text_string_to_metric_families(text)}


def value(metric: Metric, sample: str, **labels: str) -> float:
    """The value of the one sample with this name and these labels, of version 3 of a model."""
    if "model" in labels:
        labels["version"] = "3"
    (found,) = [s.value for s in metric.samples if s.name == sample and s.labels == labels]
    return found


def test_names_types_and_labels_are_the_documented_ones(memory: MetricMemory) -> None:
    """No documented metric is missing, no other is there, and each has a help text."""
    parsed = families(memory, "first", "digits")
    assert {name: metric.type for name, metric in parsed.items()} == {
        name: kind for name, (kind, _) in DOCUMENTED.items()
    }
    for name, metric in parsed.items():
        assert metric.documentation.endswith(".")
        # A model that ran on one GPU has its UUID beside Triton's names.
        further = {"le", "gpu_uuid"} if name.startswith("nv_inference") else {"le"}
        assert {frozenset(sample.labels) - further for sample in metric.samples} == {
            frozenset(DOCUMENTED[name][1])
        }


def test_the_load_alone_is_two_lines(memory: MetricMemory) -> None:
    """Autoscalers read it each second from many servers: it is short, and sums all models."""
    device = memory.page(FIRST_DEVICE_PAGE).model(1)
    device.learn_batch_time(256, 1_000_000_000)
    now_s = iter((0.0, 1.0))
    meter = LoadMeter(memory, lambda: next(now_s))
    device.observe_batch(64, "idle", 1)
    versions = {"3": ServedVersion(VersionStatus(1, "AVAILABLE"), cast(Service, object()))}
    gone = {"1": ServedVersion(VersionStatus(2, "END"))}
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
    callers = parsed["stoker_caller_device_seconds"]
    assert value(callers, "stoker_caller_device_seconds_total", caller="default") == 1.0
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
def test_gpu_readings_are_in_base_units(
    memory: MetricMemory, name: str, alias: str | None, expected: float
) -> None:
    """Under Stoker's names and Triton's; a value that the driver does not report has no sample."""
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
    assert 'nv_energy_consumption{gpu_uuid="GPU-whole"} 9876543.21' in lines


def test_triton_s_large_numbers_have_no_exponent(memory: MetricMemory) -> None:
    """At which perf_analyzer stops reading: 5 GiB would be 5 bytes."""
    lines = exposition(memory, "first", "digits").splitlines()
    assert 'nv_gpu_memory_used_bytes{gpu_uuid="GPU-whole"} 5368709120' in lines
    assert not [line for line in lines if line.startswith("nv_") and "e+" in line]


def samples_of(memory: MetricMemory, *models: str) -> dict[str, float]:
    """Triton's counters of models, by name and labels as they are written."""
    lines = exposition(memory, *models).splitlines()
    return {
        place: float(number)
        for place, _, number in (line.rpartition(" ") for line in lines if line.startswith("nv_inference"))
    }


def test_triton_s_counters_of_models(memory: MetricMemory) -> None:
    """Under its exact names, as counters, with the GPU of a model that ran on one, in its units."""
    samples = samples_of(memory, "first", "digits")
    digits = 'gpu_uuid="GPU-whole",model="digits",version="3"'
    assert {
        name.removeprefix("nv_inference_").removesuffix(f"{{{digits}}}"): number
        for name, number in samples.items()
        if name.endswith(f"{{{digits}}}")
    } == {
        "request_success": 3,
        "count": 6,
        "exec_count": 2,
        "request_duration_us": 1_000_001_000,
        "queue_duration_us": 3000,
        "compute_input_duration_us": 100_000_100,
        # Three rows in a batch of 2 ms, four in one of 3 ms.
        "compute_infer_duration_us": 18_000,
        "compute_output_duration_us": 0,
        "pending_request_count": 9,
    }
    failed = {
        reason: samples[
            f'nv_inference_request_failure{{gpu_uuid="GPU-whole",model="digits",reason="{reason}",version="3"}}'
        ]
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    }
    assert failed == {"REJECTED": 1, "CANCELED": 0, "BACKEND": 0, "OTHER": 1}
    # It has run nowhere, and has its zeros.
    assert samples['nv_inference_count{model="first",version="3"}'] == 0
    assert "# TYPE nv_inference_count counter" in exposition(memory, "first", "digits").splitlines()


def test_counters_under_torchserve_s_names(memory: MetricMemory) -> None:
    """Requests and their times, summed, as counters with TorchServe's labels."""
    lines = exposition(memory, "first", "digits").splitlines()
    labels = f'hostname="{socket.gethostname()}",model_name="digits",model_version="3"'
    values = {
        name: float(line.rpartition(" ")[2])
        for line in lines
        for name, _, rest in [line.partition("{")]
        if name.startswith("ts_") and rest.startswith(labels)
    }
    assert values == {
        "ts_inference_requests_total": 3,
        "ts_inference_latency_microseconds": 1_000_001_000,
        "ts_queue_latency_microseconds": 3000,
    }
    for name in values:
        assert f"# TYPE {name} counter" in lines


def test_triton_s_counters_of_a_model_on_several_gpus_name_none(memory: MetricMemory) -> None:
    """Requests are not counted by GPU, so the counters have no label of one."""
    other = memory.page(FIRST_DEVICE_PAGE + 1)
    other.set_device(3)
    other.model(1).count_busy(1_000_000, {0: 1})
    assert samples_of(memory, "first", "digits")['nv_inference_count{model="digits",version="3"}'] == 6


@pytest.mark.parametrize(
    ("visible", "device", "uuid"),
    [
        (None, 3, "GPU-divided"),
        ("3,2", 0, "GPU-divided"),
        ("3,2", 1, "GPU-whole"),
        ("GPU-w", 0, "GPU-whole"),
        # Of parts of a GPU there are no readings.
        ("MIG-part,2", 1, None),
        ("2", 3, None),
    ],
)
def test_triton_s_counters_name_the_gpu_that_a_number_means(
    memory: MetricMemory, visible: str | None, device: int, uuid: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA_VISIBLE_DEVICES renumbers the devices of models; the metrics of GPUs have the driver's numbers."""
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    memory.page(FIRST_DEVICE_PAGE).set_device(device)
    labels = 'model="digits",version="3"' if uuid is None else f'gpu_uuid="{uuid}",model="digits",version="3"'
    assert samples_of(memory, "first", "digits")[f"nv_inference_count{{{labels}}}"] == 6


def test_a_process_on_two_gpus_keeps_both_busy(memory: MetricMemory) -> None:
    """Its time is that of each; Triton's counters name neither, for its requests are not counted by GPU."""
    memory.page(FIRST_DEVICE_PAGE).set_device(0, 3)
    busy = families(memory, "first", "digits")["stoker_device_busy_seconds"]
    for gpu in ("cuda:0", "cuda:3"):
        assert value(busy, "stoker_device_busy_seconds_total", model="digits", device=gpu) == 1.5
    samples = samples_of(memory, "first", "digits")
    assert samples['nv_inference_count{model="digits",version="3"}'] == 6


def test_triton_s_counters_only_grow(memory: MetricMemory) -> None:
    """Prometheus takes a counter that falls for a restart, so the counts of two processes may not disagree."""
    frontend, device = memory.page(0).model(1), memory.page(FIRST_DEVICE_PAGE).model(1)
    steps = (
        lambda: device.note_queued(np.array([10])),
        device.flush_queued,
        lambda: device.observe_batch(40, "full", 1000),
        lambda: frontend.note_scored(40, 1000, 5000),
        frontend.flush,
        lambda: frontend.count_request(500),
    )
    before = samples_of(memory, "first", "digits")
    for step in steps:
        step()
        now = samples_of(memory, "first", "digits")
        assert all(now[name] >= number for name, number in before.items())
        before = now


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
    turns = {
        float(sample.labels["le"]): sample.value
        for sample in parsed["stoker_turn_wait_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert turns == {**{bound: float(bound >= 0.002) for bound in STAGE_BOUNDS_S}, np.inf: 1.0}


def test_awkward_names_are_escaped(memory: MetricMemory) -> None:
    """Quotes, backslashes and newlines in a label keep the text parseable."""
    parsed = families(memory, 'a"b\\c\nd', "naïve")
    assert {sample.labels["model"] for sample in parsed["stoker_rows"].samples} == {'a"b\\c\nd', "naïve"}


def test_the_content_type_is_prometheus_text() -> None:
    """Scrapers choose their parser by it."""
    assert CONTENT_TYPE_LATEST.startswith("text/plain; version=")


def test_only_models_with_targets_have_answers_in_time(memory: MetricMemory) -> None:
    """A model without a target has no such counter: it would read as all answers, or none, in time."""
    parsed = families(memory, "first", "digits")
    for tier, in_time, rows in (("normal", 3, 5), ("low", 1, 4)):
        labels = {"model": "digits", "tier": tier}
        assert value(parsed["stoker_in_target"], "stoker_in_target_total", **labels) == in_time
        assert value(parsed["stoker_answers"], "stoker_answers_total", **labels) == rows
    refusals = parsed["stoker_refusals"]
    assert value(refusals, "stoker_refusals_total", model="digits", reason="target", tier="low") == 1
    ratios = parsed["stoker_expected_over_actual"]
    assert value(ratios, "stoker_expected_over_actual_bucket", model="digits", le="0.9") == 0
    assert value(ratios, "stoker_expected_over_actual_bucket", model="digits", le="1.0") == 1
    assert value(ratios, "stoker_expected_over_actual_sum", model="digits") == 0.95
    assert {sample.labels["model"] for sample in parsed["stoker_answers"].samples} == {"digits"}


def test_only_models_with_sequences_have_counters_of_sequences(memory: MetricMemory) -> None:
    """Two device processes add up; those that there are now are set, the others counted on."""
    memory.page(FIRST_DEVICE_PAGE + 1).model(1).count_sequences(4, 4, 0, 0)
    memory.page(FIRST_DEVICE_PAGE).model(1).count_sequences(1, 0, 0, 1)
    parsed = families(memory, "first", "digits")
    assert value(parsed["stoker_sequences"], "stoker_sequences", model="digits") == 5
    started = parsed["stoker_sequences_started"]
    assert value(started, "stoker_sequences_started_total", model="digits") == 9
    ended = parsed["stoker_sequences_ended"]
    for reason, expected in (("end", 1), ("idle", 3)):
        assert value(ended, "stoker_sequences_ended_total", model="digits", reason=reason) == expected
    assert {sample.labels["model"] for sample in started.samples} == {"digits"}


def test_only_models_with_kept_answers_have_counters_of_them(memory: MetricMemory) -> None:
    """Two frontends add up, Triton's times are microseconds, and a model without kept answers has no samples."""
    other = memory.page(1).model(1)
    other.count_cache(2_000_000, found=True)
    other.note_cache_size(4096, 1)
    parsed = families(memory, "first", "digits")
    for name, expected in (
        ("stoker_cache_hits_total", 2),
        ("stoker_cache_misses_total", 1),
        ("stoker_cache_hit_seconds_total", 0.004),
        ("stoker_cache_miss_seconds_total", 0.0015),
        ("stoker_cache_evictions_total", 4),
        ("stoker_cache_bytes", 8192),
        ("nv_cache_num_hits_per_model", 2),
        ("nv_cache_num_misses_per_model", 1),
        ("nv_cache_hit_duration_per_model", 4000),
        ("nv_cache_miss_duration_per_model", 1500),
    ):
        family = parsed[name.removesuffix("_total")]
        # The parser ends the names of all counters so.
        sample_name = f"{name}_total" if name.startswith("nv_") else name
        assert value(family, sample_name, model="digits") == pytest.approx(expected)
        assert {sample.labels["model"] for sample in family.samples} == {"digits"}


def test_models_that_are_not_loaded_share_their_series() -> None:
    """Hundreds of them add no line; requests that were refused meanwhile are counted without their names."""
    memory = metric_memory()
    memory.page(SUPERVISOR_PAGE).set_model_memory(2 << 30, 1 << 30)
    memory.page(0).model(0).count_request(200)
    memory.page(0).model(UNLOADED_SLOT).count_request(503)
    service = cast(Service, SimpleNamespace(signature=None))
    loaded = ServedModel({"1": ServedVersion(VersionStatus(0, "AVAILABLE"), service)}, "1")
    waits = VersionStatus(UNLOADED_SLOT, "AVAILABLE", residence="unloaded")
    asleep = ServedModel({"1": ServedVersion(waits, service)}, "1")
    one, many = (
        render(memory, {"m": loaded, **{f"m{number}": asleep for number in range(count)}}, LoadMeter(memory))
        for count in (1, 500)
    )
    assert one == many
    assert b'stoker_requests_total{model="(not loaded)",status="503",version=""} 1.0' in many
    assert b'stoker_requests_total{model="m",status="200",version="1"} 1.0' in many
    assert b'stoker_rows_total{model="(not loaded)"' not in many


def test_metrics_without_file_descriptors_leave_the_spool_out(memory: MetricMemory) -> None:
    """A frontend that can open no further file answers with all other metrics."""

    class FullSpool:
        def usage(self) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

    text = render(memory, {}, LoadMeter(memory), spool=cast("Spool", FullSpool())).decode()
    assert "stoker_accept_failures_total" in text
    assert "stoker_later" not in text
