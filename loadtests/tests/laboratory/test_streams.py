"""`stoker simulate` of a GPU with copies beside the computation: what it prints, and what it refuses."""

import json

import pytest

from stoker.cli import main

GPU = ("--device", "h200-resnet50", "--seconds", "0.5", "--seeds", "101")


def test_callers_are_told_with_the_device_and_its_ceiling(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_loads_are_told_as_those_of_other_devices(capsys: pytest.CaptureFixture[str]) -> None:
    """With targets, and beyond the ceiling too: what cannot be in time runs late."""
    assert main(["simulate", *GPU, "--load", "0.5,1.5", "--target-ms", "14", "--json"]) == 0
    light, heavy = json.loads(capsys.readouterr().out)
    assert (light["load"], light["in_time"]) == (0.5, 1)
    assert (light["device"], light["target_ms"], "rows_per_s" in light) == ("h200-resnet50", 14, True)
    assert light["p99_ms"] < 14
    assert 0.9 < heavy["of_the_ceiling"] < 1
    assert 0.6 < heavy["in_time"] < 0.7


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((*GPU, "--gpus", "2"), "leave --gpus out"),
        ((*GPU, "--row-ms", "1"), "leave --row-ms out"),
        ((*GPU, "--admission", "target"), "leave --bounds and --admission target out"),
        (("--callers", "4"), "--callers needs a device with copies: h200-resnet50"),
    ],
)
def test_options_without_a_meaning_are_refused(
    options: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options of devices that follow a line, and callers of those."""
    assert main(["simulate", *options]) == 2
    assert told in capsys.readouterr().err


def test_the_sizes_of_batches_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Up to the largest batch that is allowed."""
    assert (
        main(["simulate", *GPU, "--load", "0.1", "--batch-buckets", "8,1,64", "--max-batch-rows", "32"]) == 0
    )
    assert "batch_buckets 1,8\n" in capsys.readouterr().out
