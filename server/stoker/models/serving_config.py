"""TensorFlow Serving's own files: `--model_config_file` and `--batching_parameters_file`, as settings.

Sources: `ModelServerConfig` in `tensorflow_serving/config/model_server_config.proto`, and
`session_bundle_config.proto`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings, cut
from stoker.models.pbtxt_fields import Fields, InvalidField, read_fields
from stoker.models.triton_batching import version_settings
from stoker.settings.model import ModelSettings, model_settings
from stoker.settings.names import SERVICE_RULE, is_service_name
from stoker.settings.server import ImportedSettings

_POLL_S: Final = 1
"""The default of TensorFlow Serving (`--file_system_poll_wait_seconds`)."""
_US_A_MS: Final = 1000
_CONFIG_FIELDS: Final = (
    "name", "base_path", "model_platform", "model_type", "model_version_policy", "version_labels", "logging_config",
)  # fmt: skip
_BATCHING_INSTEAD: Final = {
    "num_batch_threads": "device_batches says how many batches compute at once",
    "max_enqueued_batches": "max_concurrent_requests limits how many requests wait",
    "thread_pool_name": "",
    "pad_variable_length_inputs": "pad says what free sizes are filled up with",
    "enable_large_batch_splitting": "requests of any length are divided among batches",
    "max_execution_batch_size": "",
    "mixed_priority_batching_policy": "",
    "low_priority_max_batch_size": "",
    "low_priority_batch_timeout_micros": "",
    "low_priority_max_enqueued_batches": "",
    "low_priority_allowed_batch_sizes": "",
}


def read_model_config(file: Path) -> tuple[tuple[ModelSettings, ...], ImportedSettings]:
    """Read a `models.config`: the models that it lists, and its settings of the server.

    Args:
        file: Its path. A relative `base_path` is relative to its folder.

    Raises:
        InvalidSettings: The file cannot be read, or needs a feature that is not offered; the message says what to do.
    """
    notes: list[str] = []

    def models(fields: Fields) -> tuple[ModelSettings, ...]:
        fields.check_known("model_config_list", "custom_model_config")
        if fields.has("custom_model_config"):
            raise InvalidField("custom_model_config names no models; list them in model_config_list")
        listed = fields.message("model_config_list")
        configs = [] if listed is None else listed.messages("config")
        if not configs:
            raise InvalidField("model_config_list has no config, so there is nothing to serve")
        return tuple(_model(config, file, notes) for config in configs)

    listed = read_fields(file, str(file), models, InvalidSettings)
    return listed, ImportedSettings(str(file), server={"poll_s": _POLL_S}, passed_over=tuple(notes))


def _model(config: Fields, file: Path, notes: list[str]) -> ModelSettings:
    config.check_known(*_CONFIG_FIELDS)
    name, base = config.text("name"), config.text("base_path")
    if not name or not base:
        raise InvalidField(f"{config.place}name and base_path are both needed")
    if not is_service_name(name):
        raise InvalidField(
            f"{config.place}name: {cut(name)} cannot be a model name: it has to be {SERVICE_RULE}"
        )
    if "://" in base:
        raise InvalidField(
            f"{config.place}base_path {cut(base)} is no folder: copy the model to one, or give the address to stoker "
            "serve"
        )
    platform = config.text("model_platform") or config.identifier("model_type") or "tensorflow"
    if platform.lower() != "tensorflow":
        raise InvalidField(
            f"{config.place}model_platform is {cut(platform)}; TensorFlow Serving's own is tensorflow"
        )
    if config.has("logging_config"):
        notes.append(
            f"{file.name}: logging_config of {name} is passed over: the setting collect keeps requests"
        )
    values: dict[str, Any] = {
        "name": name,
        **version_settings(config, "model_version_policy"),
        **_labels(config),
    }
    return model_settings({**values, "path": str(file.parent / base)}, f"{file}, {name}")


def _labels(config: Fields) -> dict[str, Any]:
    labels = {}
    for entry in config.messages("version_labels"):
        entry.check_known("key", "value")
        label, version = entry.text("key"), entry.number("value")
        if not label or version is None:
            raise InvalidField(f"{entry.place}key and value are both needed")
        labels[label] = version
    return {"labels": labels} if labels else {}


def read_batching_parameters(file: Path) -> ImportedSettings:
    """Read a file of batching parameters, which are for all models."""
    notes: list[str] = []

    def settings(fields: Fields) -> tuple[dict[str, Any], ModelSettings]:
        fields.check_known(
            "max_batch_size", "batch_timeout_micros", "allowed_batch_sizes", *_BATCHING_INSTEAD
        )
        for name, instead in _BATCHING_INSTEAD.items():
            if fields.has(name):
                notes.append(f"{file.name}: {name} is passed over{instead and f': {instead}'}")
        values: dict[str, Any] = {}
        if (rows := _wrapped(fields, "max_batch_size")) is not None:
            values["max_batch_rows"] = rows
        if (micros := _wrapped(fields, "batch_timeout_micros")) is not None:
            values["max_delay_ms"] = micros / _US_A_MS
        sizes = fields.sizes("allowed_batch_sizes")
        return values, model_settings({"batch_buckets": list(sizes)} if sizes else {}, str(file))

    # The server has settings for these. As settings of a model, they would overrule all settings of the server.
    server, model = read_fields(file, str(file), settings, InvalidSettings)
    model_settings(server, str(file))
    return ImportedSettings(str(file), server=server, model=model, passed_over=tuple(notes))


def _wrapped(fields: Fields, name: str) -> int | None:
    """Return the number in a wrapper, `name { value: 1 }`; 0 for an empty one."""
    wrapper = fields.message(name)
    if wrapper is None:
        return None
    wrapper.check_known("value")
    return wrapper.number("value") or 0
