"""The arguments of `stoker train`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

import stoker_training
from stoker.commands import train
from stoker_training import NETWORKS, TrainingSpec


def parse(*arguments):
    parser = argparse.ArgumentParser(prog="stoker train")
    train.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [
        ([], TrainingSpec()),
        (
            ["--network", "cnn", "--epochs", "3", "--seed", "5", "--output", "runs/a", "--data", "mnist"],
            TrainingSpec(network="cnn", epochs=3, seed=5, output=Path("runs/a"), data=Path("mnist")),
        ),
    ],
    ids=["defaults", "all given"],
)
def test_arguments_become_the_spec(monkeypatch, arguments, spec):
    """The command line's defaults are the spec's, and every argument reaches it."""
    trained = []
    monkeypatch.setattr(stoker_training, "train", trained.append)
    assert train.run(parse("mnist", *arguments)) == 0
    assert trained == [spec]


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_is_offered(network):
    """The command offers what the module can train."""
    assert parse("mnist", "--network", network).network == network


@pytest.mark.parametrize(
    "arguments", [[], ["imagenet"], ["mnist", "--network", "transformer"], ["mnist", "--epochs", "many"]]
)
def test_wrong_arguments_are_refused_with_the_usage(arguments, capsys):
    """A mistyped command ends with exit code 2 and the usage line."""
    with pytest.raises(SystemExit) as stopped:
        parse(*arguments)
    assert stopped.value.code == 2
    assert "usage: stoker train" in capsys.readouterr().err
