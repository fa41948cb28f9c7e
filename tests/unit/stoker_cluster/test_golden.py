"""Whole outputs of `stoker kubernetes render`, checked in as they were read by a person.

The first line of each has the command, run in the folder of these files, which makes the rest of it anew.
"""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from stoker import cli

GOLDEN = Path(__file__).parent / "golden"
CUSTOM = {"HTTPRoute", "PodMonitor", "ScaledObject", "ClusterServingRuntime"}


@pytest.mark.parametrize(
    "file", sorted(GOLDEN.glob("*.golden.yaml")), ids=lambda file: file.name.partition(".")[0]
)
def test_printed_objects_are_unchanged_and_valid(
    file: Path,
    check_schema: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command prints the file's content; its built-in objects are valid in three minors of Kubernetes."""
    command, _, expected = file.read_text(encoding="utf-8").partition("\n")
    monkeypatch.chdir(GOLDEN)
    assert cli.main(shlex.split(command.removeprefix("# stoker "))) == 0
    assert capsys.readouterr().out == expected
    for content in yaml.load_all(expected, yaml.CSafeLoader):
        if content["kind"] not in CUSTOM:
            check_schema(content)
