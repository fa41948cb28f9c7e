"""`stoker simulate`: its tables, and the options that it refuses."""

import json
import re

import pytest

from stoker.cli import main

GPU = ("--device", "h200-resnet50", "--seconds", "0.5", "--seeds", "101")


def test_callers_in_a_closed_loop_reach_the_ceiling(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines above the table say what load 1 is; 64 callers in two groups reach 0.9 of it."""
    assert main(["simulate", *GPU, "--callers", "1,64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("h200-resnet50: ResNet-50 FP16, uint8 rows of 150,528 bytes, NVIDIA H200")
    assert lines[1].startswith("load 1 is the ceiling, 12,730 rows/s")
    assert lines[2:4] == [
        "times to answers include 0.8 ms of transport",
        "batch_buckets 1,2,4,8,16,32,48,64",
    ]
    assert lines[4].split()[:5] == ["callers", "rows/s", "of", "the", "ceiling"]
    lone, many = (line.split() for line in lines[5:])
    assert (lone[0], float(lone[3])) == ("1", pytest.approx(1.59, abs=0.01))
    assert float(many[2]) >= 0.9


def test_loads_beyond_the_ceiling_are_late(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the ceiling all rows are in time; beyond it the others run late."""
    assert main(["simulate", *GPU, "--load", "0.5,1.5", "--target-ms", "14", "--json"]) == 0
    light, heavy = json.loads(capsys.readouterr().out)
    assert (light["load"], light["in_time"]) == (0.5, 1)
    assert (light["device"], light["target_ms"], "rows_per_s" in light) == ("h200-resnet50", 14, True)
    assert light["p99_ms"] < 14
    assert 0.9 < heavy["of_the_ceiling"] < 1
    assert 0.6 < heavy["in_time"] < 0.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*GPU, "--row-ms", "1"), "leave --row-ms out"),
        ((*GPU, "--admission", "target"), "leave --admission target out"),
        (("--callers", "4"), "--callers needs a device with copies: h200-resnet50"),
        (("--device", "abacus"), "there is no device 'abacus'; there are resnet50-a100"),
    ],
)
def test_option_that_does_not_go_with_the_device_is_refused(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the option, or the known devices."""
    assert main(["simulate", *options]) == 2
    assert message in capsys.readouterr().err


def test_batch_buckets_end_at_the_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes above `--max-batch-rows` are left out."""
    assert (
        main(["simulate", *GPU, "--load", "0.1", "--batch-buckets", "8,1,64", "--max-batch-rows", "32"]) == 0
    )
    assert "batch_buckets 1,8\n" in capsys.readouterr().out


def test_table_has_a_line_for_each_load(capsys: pytest.CaptureFixture[str]) -> None:
    """The device, its ceiling and the target stand above; JSON has the same columns by keys of one form."""
    command = ["simulate", "--load", "0.2,2", "--seeds", "1", "--seconds", "0.2", "--batch-buckets", "8,64"]
    assert main(command) == 0
    device, ceiling, target, head, *lines = capsys.readouterr().out.splitlines()
    assert device == "resnet50-a100: 1.7 ms a batch and 0.25 ms a row, at most 64 rows a batch"
    assert (ceiling[:25], target[:13]) == ("load 1 is the ceiling, 3,", "target 50 ms;")
    assert re.split(r"\s\s+", head) == [
        "load",
        "rows",
        "in time",
        "p50 ms",
        "p99 ms",
        "rows a batch",
        "busy",
        "refused",
    ]
    assert [line.split()[0] for line in lines] == ["0.2", "2.0"]
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["load"], row["device"], row["target_ms"]) for row in rows] == [
        (0.2, "resnet50-a100", 50),
        (2.0, "resnet50-a100", 50),
    ]
    assert all(re.fullmatch("[a-z][a-z0-9_]*", key) for key in rows[0])
