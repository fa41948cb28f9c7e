"""Sweeps as files: Stoker's own and Azure's, and errors in them."""

from pathlib import Path

import pytest
import yaml

from stoker.errors import InvalidSettings
from stoker_runs.tuning.definition import SweepDefinition, between, expression
from stoker_runs.tuning.policies import Bandit, Goal, MedianStopping, NoTermination, TruncationSelection
from stoker_runs.tuning.sweep_files import find_hdconfig, read_hdconfig, read_sweep, split_sweep

SWEEP = {
    "script": "train.py",
    "parameters": {"--rate": {"uniform": [0, 1]}},
    "metric": "acc",
    "goal": "maximize",
    "runs": 4,
}


def read(folder: Path, text: str) -> SweepDefinition:
    file = folder / "sweep.yaml"
    file.write_text(text)
    return read_sweep(file, split_sweep(file)[0])


def test_a_file_of_ours_says_the_sweep_and_each_run(tmp_path: Path) -> None:
    """Lists are choices, bounds of logarithms are the values themselves, and 1e-4 is a number, unlike in YAML."""
    text = """
script: train.py
arguments: [--epochs, 6]
gpus: 0
parameters:
  --batch-size: [32, 64]
  --rate: {loguniform: [1e-4, 1e-1]}
  --steps: {qloguniform: [1, 100, 1]}
  --seed: {randint: 5}
  --optimizer: {choice: [adam, 1e-4]}
sampling: random
seed: 7
metric: validation_acc
goal: Minimize
runs: 20
at_once: 4
policy: {bandit: {slack_amount: 0.1, evaluation_interval: 2}}
max_total_duration: 2h
"""
    terms = read(tmp_path, text)
    assert terms.sampler.space == {
        "--batch-size": expression("choice", 32, 64),
        "--rate": between("loguniform", 1e-4, 1e-1),
        "--steps": between("qloguniform", 1, 100, 1),
        "--seed": expression("randint", 5),
        "--optimizer": expression("choice", "adam", "1e-4"),
    }
    assert (terms.sampler.seed, terms.metric, terms.goal) == (7, "validation_acc", Goal.MINIMIZE)
    assert (terms.max_runs, terms.at_once, terms.max_duration_s) == (20, 4, 7200.0)
    assert terms.policy == Bandit(slack_amount=0.1, evaluation_interval=2)
    _, of_each = split_sweep(tmp_path / "sweep.yaml")
    assert of_each == {"script": "train.py", "arguments": ["--epochs", 6], "gpus": 0}


def test_sweep_file_has_defaults(tmp_path: Path) -> None:
    """Sampling is random with a random seed, all trials run at once, and none ends early."""
    terms, again = (read(tmp_path, yaml.safe_dump(SWEEP)) for _ in range(2))
    assert (terms.sampler.kind, terms.at_once, terms.policy) == ("random", 4, NoTermination())
    assert terms.sampler.seed != again.sampler.seed
    assert read(tmp_path, yaml.safe_dump({**SWEEP, "policy": "median_stopping"})).policy == MedianStopping()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrc": 1}, "there is no setting 'metrc'; did you mean metric?"),
        ({"metric": None}, "name of a metric"),
        ({"goal": "up"}, "sweep.yaml: the goal 'up'"),
        ({"runs": "many"}, "the number of runs has to be a whole number"),
        ({"seed": "x"}, "seed must be a whole number, got 'x'"),
        ({"max_total_duration": "soon"}, "max_total_duration must be a duration"),
        ({"sampling": "bayes"}, "there is no sampling 'bayes'; did you mean bayesian?"),
        ({"parameters": [1]}, "parameters has to be a mapping"),
        ({"parameters": {"--rate": 3}}, "parameters.--rate: has to be a list of values, or one expression"),
        (
            {"parameters": {"--rate": {"uniforn": [0, 1]}}},
            "parameters.--rate: there is no expression 'uniforn'; did you",
        ),
        ({"parameters": {"--rate": {"loguniform": [0, 1]}}}, "the bound 0 has to be a number above 0"),
        ({"policy": "bandid"}, "policy: there is no policy 'bandid'; did you mean bandit?"),
        (
            {"policy": {"bandit": {"slack_facto": 1}}},
            "Bandit: there is no setting 'slack_facto'; did you mean slack_factor?",
        ),
        ({"policy": {"bandit": 3}}, "settings of Bandit have to be a mapping"),
        ({"policy": {"truncation_selection": {}}}, "needs truncation_percentage"),
        ({"policy": {"hyperband": {}}}, "Hyperband needs max_values"),
        ({"policy": {"hyperband": {"max_values": 3, "min_values": 3}}}, "has to be below max_values 3"),
        ({"policy": [1]}, "has to be one of none, bandit"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path: Path, change: dict[str, object], words: str) -> None:
    """And the nearest one that there is."""
    with pytest.raises(InvalidSettings, match=r"sweep\.yaml") as raised:
        read(tmp_path, yaml.safe_dump({**SWEEP, **change}))
    assert words in str(raised.value)


def test_all_missing_keys_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    """At once, and a file that is not there as well."""
    with pytest.raises(InvalidSettings, match="missing: metric, goal, runs"):
        read(tmp_path, "parameters: {--a: [1]}\n")
    with pytest.raises(InvalidSettings, match="there is no file"):
        split_sweep(tmp_path / "none.yaml")


HDCONFIG = """
sampling:
    type: random
    parameter_space:
    - name: --penalty
      expression: choice
      values: [0.5, 1, 1.5]
    - name: --rate
      expression: loguniform
      values: [-6, -1]
    - {name: --depth, expression: randint, values: 5}
policy:
    type: BanditPolicy
    evaluation_interval: 1
    slack_factor: 0.2
primary_metric_name: Accuracy
primary_metric_goal: Maximize
max_total_runs: 8
max_concurrent_runs: 2
max_duration_minutes: 100
"""


def hdconfig(folder: Path, text: str) -> SweepDefinition:
    (folder / "aml_config").mkdir(exist_ok=True)
    (folder / "aml_config" / "hd.yml").write_text(text)
    return read_hdconfig(find_hdconfig(folder, "hd"))


def test_azures_file_is_read_as_it_is(tmp_path: Path) -> None:
    """The exponents of its expressions, minutes, and the words of its documentation."""
    terms = hdconfig(tmp_path, HDCONFIG)
    assert terms.sampler.space == {
        "--penalty": expression("choice", 0.5, 1, 1.5),
        "--rate": expression("loguniform", -6, -1),
        "--depth": expression("randint", 5),
    }
    assert terms.policy == Bandit(slack_factor=0.2)
    assert (terms.metric, terms.goal, terms.max_runs, terms.at_once) == ("Accuracy", Goal.MAXIMIZE, 8, 2)
    assert terms.max_duration_s == 6000
    truncation = HDCONFIG.replace("Bandit", "TruncationSelection").replace(
        "slack_factor: 0.2", "truncation_percentage: 25"
    )
    assert hdconfig(tmp_path, truncation).policy == TruncationSelection(25)
    head, _, tail = HDCONFIG.partition("policy:")
    assert hdconfig(tmp_path, head + tail[tail.index("primary") :]).policy == NoTermination()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("BanditPolicy", "BanditPolizy", "there is no policy 'BanditPolizy'"),
        ("max_total_runs: 8", "", "missing: max_total_runs"),
        ("max_total_runs", "max_total_run", "did you mean max_total_runs?"),
        ("max_duration_minutes: 100", "max_duration_minutes: x", "must be a number"),
        ("type: random", "type: gird", "there is no sampling 'gird'; did you mean grid?"),
        ("      expression: choice\n", "", "each parameter has name, expression and values"),
        ("type: BanditPolicy", "kind: 1", "there is no policy None"),
    ],
)
def test_azures_file_is_refused_with_a_reason(tmp_path: Path, old: str, new: str, words: str) -> None:
    """With the file, and what there is."""
    with pytest.raises(InvalidSettings, match=r"hd\.yml") as raised:
        hdconfig(tmp_path, HDCONFIG.replace(old, new))
    assert words in str(raised.value)


def test_a_configuration_that_is_not_there_is_looked_for_in_all_places(tmp_path: Path) -> None:
    """And they are named."""
    with pytest.raises(InvalidSettings, match=r"neither hd\.yml in this folder, nor in aml_config"):
        find_hdconfig(tmp_path, "hd")
