"""Sweeps as files: Stoker's own `NAME.yaml`, and Azure's `hdconfig.yml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from stoker.errors import InvalidSettings
from stoker.settings.names import did_you_mean
from stoker.settings.readers import number_of, read_value, unknown_setting
from stoker.settings.yaml_files import read_yaml
from stoker_runs.launch.azure_files import CONFIG_FOLDERS
from stoker_runs.launch.configuration import SETTINGS, read_duration_s
from stoker_runs.tuning.definition import (
    KINDS,
    RANDOM,
    Expression,
    SweepDefinition,
    between,
    define_sweep,
    expression,
    new_seed,
    sampler,
)
from stoker_runs.tuning.policies import (
    POLICIES,
    Bandit,
    Hyperband,
    MedianStopping,
    NoTermination,
    Policy,
    TruncationSelection,
)

_Made = TypeVar("_Made")
_OF_A_SWEEP: Final = (
    "parameters",
    "sampling",
    "seed",
    "metric",
    "goal",
    "runs",
    "at_once",
    "policy",
    "max_total_duration",
)
_NEEDED: Final = ("parameters", "metric", "goal", "runs")
_SEED: Final = number_of(int, -(2**63), 2**63 - 1)
_AZURE_POLICIES: Final[Mapping[str, type[Policy]]] = {
    "banditpolicy": Bandit,
    "medianstoppingpolicy": MedianStopping,
    "truncationselectionpolicy": TruncationSelection,
    "noterminationpolicy": NoTermination,
    "default": NoTermination,
}
_HD_KEYS: Final = (
    "sampling",
    "policy",
    "primary_metric_name",
    "primary_metric_goal",
    "max_total_runs",
    "max_concurrent_runs",
    "max_duration_minutes",
)
_HD_NEEDED: Final = ("sampling", "primary_metric_name", "primary_metric_goal", "max_total_runs")


def split_sweep(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a sweep file; return the settings of the sweep, and those of its runs."""
    if not file.is_file():
        raise InvalidSettings(f"there is no file {file}; see: stoker tune --help")
    content = read_yaml(file, "sweep", "keys of a sweep")
    _check_there(file, content, (*_OF_A_SWEEP, *SETTINGS), _NEEDED, "stoker tune --help shows one")
    of_the_sweep = {key: value for key, value in content.items() if key in _OF_A_SWEEP}
    return of_the_sweep, {key: value for key, value in content.items() if key not in _OF_A_SWEEP}


def read_sweep(file: Path, content: Mapping[str, Any]) -> SweepDefinition:
    """Return the definition of a sweep from the settings of a file.

    Args:
        content: What `split_sweep` gave of the sweep.

    Raises:
        InvalidSettings: A value cannot be; the message names the key.
    """
    space = {
        str(name): _checked(file, f"parameters.{name}", _parameter, one)
        for name, one in _mapping(file, content, "parameters").items()
    }
    policy = _checked(file, "policy", _policy, content.get("policy"))
    duration = content.get("max_total_duration")
    if duration is not None:
        duration = read_value("max_total_duration", duration, read_duration_s, str(file))
    seed = content.get("seed")
    seed = new_seed() if seed is None else read_value("seed", seed, _SEED, str(file))
    return _checked(
        file,
        "",
        lambda: define_sweep(
            sampler(str(content.get("sampling", RANDOM)), space, seed),
            content["metric"],
            content["goal"],
            content["runs"],
            content.get("at_once"),
            policy,
            max_duration_s=duration,
        ),
    )


def _parameter(content: Any) -> Expression:
    """`[16, 32]`, or `{loguniform: [0.001, 0.1]}` with the bounds themselves."""
    if isinstance(content, list):
        return expression("choice", *content)
    if not isinstance(content, dict) or len(content) != 1:
        raise InvalidSettings(
            "has to be a list of values, or one expression such as {uniform: [0, 1]}; "
            f"expressions are {', '.join(KINDS)}"
        )
    ((kind, arguments),) = content.items()
    values = _numbers(arguments) if kind != "choice" else arguments
    values = values if isinstance(values, list) else [values]
    if kind in ("loguniform", "qloguniform") and len(values) >= 2:
        return between(kind, *values)
    return expression(str(kind), *values)


def _numbers(content: Any) -> Any:
    """YAML takes 1e-4, without a point, for a text."""
    if isinstance(content, list):
        return [_numbers(one) for one in content]
    if isinstance(content, str):
        try:
            return float(content)
        except ValueError:
            return content
    return content


def _policy(content: Any) -> Policy:
    """`median_stopping`, or `{bandit: {slack_factor: 0.1}}`."""
    if content is None:
        return NoTermination()
    if isinstance(content, str):
        content = {content: {}}
    if not isinstance(content, dict) or len(content) != 1:
        raise InvalidSettings(f"has to be one of {', '.join(POLICIES)}, as {{bandit: {{slack_factor: 0.1}}}}")
    ((name, settings),) = content.items()
    if name not in POLICIES:
        raise InvalidSettings(f"there is no policy {name!r}; {did_you_mean(str(name), POLICIES)}")
    return _policy_of(POLICIES[name], settings or {})


def _policy_of(kind: type[Policy], settings: Any) -> Policy:
    if not isinstance(settings, dict):
        raise InvalidSettings(f"the settings of {kind.__name__} have to be a mapping of names to values")
    for name in settings:
        if name not in kind.__struct_fields__:
            raise unknown_setting(name, kind.__struct_fields__, kind.__name__)
    needed = {TruncationSelection: "truncation_percentage", Hyperband: "max_values"}.get(kind)
    if needed is not None and needed not in settings:
        raise InvalidSettings(f"{kind.__name__} needs {needed}")
    return kind(**settings)


def find_hdconfig(project: Path, name: str) -> Path:
    """The HyperDrive configuration of this name, or path, for a project."""
    for folder in CONFIG_FOLDERS:
        for suffix in ("", ".yml", ".yaml"):
            file = project / folder / f"{name}{suffix}"
            if file.is_file():
                return file
    raise InvalidSettings(
        f"there is no HyperDrive configuration {name}: neither {name}.yml in this folder, nor in aml_config "
        "or .azureml"
    )


def read_hdconfig(file: Path) -> SweepDefinition:
    """Return the definition of a sweep from a file of Azure's CLI, with Azure's own expressions."""
    content = read_yaml(file, "HyperDrive configuration", "keys of a HyperDrive configuration")
    _check_there(file, content, _HD_KEYS, _HD_NEEDED, "see Azure's hdconfig.yml")
    sampling = _mapping(file, content, "sampling")
    listed = sampling.get("parameter_space")
    if not isinstance(listed, list):
        raise InvalidSettings(
            f"{file}: sampling.parameter_space has to be a list of name, expression and values"
        )
    space = dict(_checked(file, "sampling.parameter_space", _azure_parameter, one) for one in listed)
    minutes = content.get("max_duration_minutes")
    if minutes is not None:
        minutes = read_value("max_duration_minutes", minutes, number_of(float, 0, 1e9), str(file))
    policy = _checked(file, "policy", _azure_policy, content.get("policy"))
    return _checked(
        file,
        "",
        lambda: define_sweep(
            sampler(str(sampling.get("type", RANDOM)), space, new_seed()),
            content["primary_metric_name"],
            content["primary_metric_goal"],
            content["max_total_runs"],
            content.get("max_concurrent_runs"),
            policy,
            max_duration_s=None if minutes is None else minutes * 60.0,
        ),
    )


def _azure_parameter(content: Any) -> tuple[str, Expression]:
    if not isinstance(content, dict) or not {"name", "expression"} <= content.keys():
        raise InvalidSettings("each parameter has name, expression and values")
    kind, values = str(content["expression"]), content.get("values", [])
    values = values if isinstance(values, list) else [values]
    return str(content["name"]), expression(kind, *(values if kind == "choice" else _numbers(values)))


def _azure_policy(content: Any) -> Policy:
    if content is None:
        return NoTermination()
    if not isinstance(content, dict):
        raise InvalidSettings("has to have a type, such as BanditPolicy, and its settings")
    kind = _AZURE_POLICIES.get(str(content.get("type", "")).lower())
    if kind is None:
        raise InvalidSettings(
            f"there is no policy {content.get('type')!r}; there are BanditPolicy, MedianStoppingPolicy, "
            "TruncationSelectionPolicy and NoTerminationPolicy"
        )
    return _policy_of(kind, {name: value for name, value in content.items() if name != "type"})


def _mapping(file: Path, content: Mapping[str, Any], key: str) -> dict[Any, Any]:
    value = content[key]
    if not isinstance(value, dict):
        raise InvalidSettings(f"{file}: {key} has to be a mapping of names to values")
    return value


def _check_there(
    file: Path, content: Mapping[Any, Any], known: Sequence[str], needed: Sequence[str], hint: str
) -> None:
    for key in content:
        if key not in known:
            raise unknown_setting(key, known, str(file))
    missing = [key for key in needed if key not in content]
    if missing:
        raise InvalidSettings(f"{file}: missing: {', '.join(missing)}; {hint}")


def _checked(file: Path, key: str, make: Callable[..., _Made], *arguments: Any) -> _Made:
    """Convert a value; errors name the file and the key."""
    try:
        return make(*arguments)
    except InvalidSettings as error:
        raise InvalidSettings(f"{file}: {key}{': ' if key else ''}{error}") from None
