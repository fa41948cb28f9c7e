"""TorchServe's `model-config.yaml`: each setting is honoured, ignored with a note, or refused.

Keys that are none of TorchServe's own, such as `handler`, belong to the handler: `context.model_yaml_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import yaml

from stoker.settings.model import ModelSettings, model_settings
from stoker.settings.yaml_files import SettingsLoader

_S_MS: Final = 1000
_REFUSED: Final = {
    "parallelType": "a model has one process; let the handler use several GPUs (device: cuda:0+cuda:1)",
    "parallelLevel": "a model has one process; let the handler use several GPUs (device: cuda:0+cuda:1)",
    "torchrun": "a model has one process",
    "continuousBatching": "write a score.py whose run yields",
    "sequenceBatching": "write a score.py with the setting sequence",
    "asyncCommunication": "answers are sent when handle() returns",
    "useJobTicket": "the setting max_concurrent_requests limits how many requests wait",
}
"""Settings that change how a handler is called and are refused, each with its replacement."""
_PASSED_OVER: Final = {
    "maxRetryTimeoutInSec": "the server restarts a process after 0.25 s, doubled up to 30 s",
    "clientTimeoutInMills": "a caller gives X-Request-Timeout-Ms",
    "maxNumSequence": "",
    "maxSequenceJobQueueSize": "",
    "sequenceMaxIdleMSec": "",
    "sequenceTimeoutMSec": "",
    "useVenv": "the setting environment_managed says who installs packages",
}
"""Settings that no answer depends on, each with what Stoker has in its place."""


def parse_model_config(content: bytes) -> dict[str, Any]:
    """Read a `model-config.yaml`.

    Raises:
        ValueError: It is no YAML with settings by name.
    """
    try:
        config = yaml.load(content.decode(), SettingsLoader)  # noqa: S506  # a safe loader
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"it is not YAML: {' '.join(str(error).split())}") from error
    if config is None:
        return {}
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise ValueError("it needs settings by name, such as batchSize: 8")
    return config


def settings_of(config: Mapping[str, Any], source: str) -> tuple[ModelSettings, tuple[str, ...]]:
    """Return what a configuration asks of the server, and what is passed over, a line each.

    Args:
        source: The file, for messages.

    Raises:
        ValueError: It asks for what is not offered; the message names the key.
    """
    values: dict[str, Any] = {}
    notes: list[str] = []
    for key, value in config.items():
        if key in _REFUSED and value not in (None, False, "", 0, {}):
            raise ValueError(f"{source}: {key} is not offered: {_REFUSED[key]}")
        if key in _PASSED_OVER:
            notes.append(f"{source}: {key} is passed over{_PASSED_OVER[key] and f': {_PASSED_OVER[key]}'}")
        elif (read := _READERS.get(key)) is not None:
            try:
                values.update(read(value))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{source}: {key}: {error}") from error
    workers, most = values.get("replicas", 1), config.get("maxWorkers")
    if isinstance(most, int) and most > workers:
        notes.append(f"{source}: maxWorkers is passed over: replicas ({workers}) are as many from the start")
    if config.get("deviceIds"):
        if config.get("deviceType") == "cpu":
            raise ValueError(f"{source}: deviceIds are GPUs, and deviceType is cpu; leave one out")
        # Also where deviceType stands behind it.
        values |= _device_ids(config["deviceIds"])
    return model_settings(values, source), tuple(notes)


def _workers(value: Any) -> dict[str, Any]:
    count = _whole(value, 0)
    # TorchServe registers such a model, and starts workers when it is asked to.
    return {"replicas": count} if count else {}


def _batch_size(value: Any) -> dict[str, Any]:
    rows = _whole(value, 1)
    # A handler whose model has a batch size takes as many requests at once.
    return {"max_batch_rows": rows, "batching": "rows"} if rows > 1 else {"max_batch_rows": 1}


def _device_type(value: Any) -> dict[str, Any]:
    if value not in ("cpu", "gpu"):
        raise ValueError(f"{value!r} is not offered; it is cpu or gpu")
    return {"device": "cpu" if value == "cpu" else "auto"}


def _device_ids(value: Any) -> dict[str, Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{value!r} is no list of GPUs")
    return {"device": ",".join(f"cuda:{_whole(number, 0)}" for number in value)}


def _queue(value: Any) -> dict[str, Any]:
    return {"max_concurrent_requests": _whole(value, 1), "max_queue_wait_ms": 0}


def _whole(value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is no whole number from {least} up")
    return value


_READERS: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "minWorkers": _workers,
    "batchSize": _batch_size,
    "maxBatchDelay": lambda value: {"max_delay_ms": _whole(value, 0)},
    "responseTimeout": lambda value: {"timeout_ms": _whole(value, 1) * _S_MS},
    "startupTimeout": lambda value: {"load_timeout_s": _whole(value, 1)},
    "deviceType": _device_type,
    "deviceIds": _device_ids,
    "jobQueueSize": _queue,
}
