"""What the summary of the start says of devices and replicas."""

from pathlib import Path

import pytest
from tests.puppets import ROWS

from stoker.deployment import Deployed
from stoker.placement import place
from stoker.servable import Servable
from stoker.serving import _device_lines, _most_rows, _replica_lines
from stoker.start_up import DeviceReport, ModelReport


@pytest.mark.parametrize(("buckets", "rows"), [(None, 64), ((), 64), ((1, 8), 8)])
def test_the_largest_batch_is_the_largest_bucket(buckets: tuple[int, ...] | None, rows: int) -> None:
    """Batches above the largest bucket never run, whatever max_batch_rows says."""
    servable = Servable(
        "digits", 1, "onnx", Path("x"), Path(), max_batch_rows=64, max_body_bytes=64, batch_buckets=buckets
    )
    assert _most_rows(servable) == rows


def test_processes_that_share_a_device_are_counted() -> None:
    """Each device is shown once for each reason; several processes on one share its memory or cores."""
    first = DeviceReport("cuda:0", "H200, 140 GiB", "as asked for")
    second = DeviceReport("cuda:1", "H200, 140 GiB", "as asked for")
    chosen = DeviceReport("cuda:0", "H200, 140 GiB", "the first GPU that can be used")
    cpu = DeviceReport("cpu", "EPYC, 2 cores", "as asked for")
    assert _device_lines([first, second, chosen, cpu, cpu]) == [
        "  device   cuda:0: H200, 140 GiB (as asked for)",
        "  device   cuda:1: H200, 140 GiB (as asked for)",
        "  device   cuda:0: H200, 140 GiB (the first GPU that can be used)",
        "  device   cpu: EPYC, 2 cores (as asked for)",
        "           2 device processes share the memory of cuda:0",
        "           2 device processes share the cores",
    ]


@pytest.mark.parametrize(
    ("device", "replicas", "expected"),
    [
        ("cuda:0", 1, []),
        ("cuda:0", 3, ["3 replicas: 3 on cuda:0"]),
        (
            "cpu",
            3,
            [
                "2 replicas: 2 on cpu",
                "3 replicas were asked for, 2 run: on the CPU there is at most one for each core, and this server "
                "may use 2",
            ],
        ),
    ],
)
def test_replicas_are_shown_where_there_are_several_or_too_few(
    device: str, replicas: int, expected: list[str]
) -> None:
    """A model with one replica as asked for has no line about it."""
    placement = place([device], replicas, cores=2)
    servable = Servable("digits", 1, "onnx", Path("x"), Path(), max_batch_rows=4, max_body_bytes=64)
    deployed = Deployed(servable, 0, max_delay_ms=0.0, placement=placement, threads=1, timeout_ms=1000)
    report = ModelReport(deployed, ROWS, list(placement.devices), 0.5, 0.25)
    assert [line.strip() for line in _replica_lines(report)] == expected
