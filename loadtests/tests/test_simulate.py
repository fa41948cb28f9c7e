"""`stoker simulate`: its table, and the device that it refuses."""

import json
import re

import pytest

from stoker.cli import main


def test_unknown_device_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the known devices."""
    assert main(["simulate", "--device", "abacus"]) == 2
    assert "there is no device 'abacus'; there are resnet50-a100" in capsys.readouterr().err


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
