"""The settings of Azure's own inference server, so that the environment of an Azure image works unchanged.

They are environment variables, or keys of a `config.json` with the same names; a variable wins over the file. They
count only where they say what is served: `stoker serve` without PATH and models, with AZUREML_ENTRY_SCRIPT set.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker.settings.files import read_json
from stoker.settings.model import ModelSettings, model_settings
from stoker.settings.names import is_name, name_from_file
from stoker.settings.server import ImportedSettings

_SETTINGS: Final = {
    "SCORING_TIMEOUT_MS": "timeout_ms",
    "WORKER_COUNT": "replicas",
    "AML_MODEL_DC_STORAGE_ENABLED": "collect",
}
_OF_THE_SCRIPT: Final = (
    *("AZUREML_ENTRY_SCRIPT", "AZUREML_MODEL_DIR", "AML_APP_ROOT", "AZUREML_SOURCE_DIRECTORY"),
    *("SERVICE_NAME", "AZUREML_LOG_LEVEL"),
)
_READ_BY_SETTINGS: Final = (
    *("SERVICE_VERSION", "SERVICE_PATH_PREFIX", "AML_CORS_ORIGINS", "SERVER_VERSION_LOG_RESPONSE_ENABLED"),
)
_WITHOUT_EFFECT: Final = {
    "WORKER_TIMEOUT": "a device process is watched, and replaced when it ends",
    "WORKER_PRELOAD": "a replica loads its model itself",
    "SEPERATE_HEALTH_ENDPOINT": "health is at the same port",
    "AML_APP_INSIGHTS_ENABLED": "metrics are at /metrics",
    "AML_APP_INSIGHTS_KEY": "metrics are at /metrics",
    "APP_INSIGHTS_LOG_RESPONSE_ENABLED": "metrics are at /metrics",
    "AZUREML_DEBUG_PORT": "there is no debugger in the server",
    "WORKSPACE_NAME": "there is no workspace of Azure",
    "SERVER_PORT": "as there; use STOKER_PORT or --port",
    "HEALTH_PORT": "health is at the same port",
}

SERVER_VARIABLES: Final = (*_OF_THE_SCRIPT, *_SETTINGS, *_READ_BY_SETTINGS, *_WITHOUT_EFFECT)
"""Every variable that is known."""


class AzureServer(Struct, frozen=True):
    """The settings in the variables of Azure's inference server.

    Attributes:
        values: The settings by name, also those of the file; `load_settings` reads some of them as variables.
        unknown: Names in the file that are not settings.
        source: Where the settings are from, for messages.
    """

    script: Path
    values: Mapping[str, str]
    unknown: tuple[str, ...]
    source: str

    @classmethod
    def find(cls, environ: Mapping[str, str]) -> AzureServer | None:
        """Read the variables and the file; return None unless they name an entry script."""
        if not (environ.get("AZUREML_ENTRY_SCRIPT") or environ.get("AZUREML_CONFIG_FILE")):
            return None
        file = _config_file(environ)
        stored = {} if file is None else read_json(file)
        values = {name: _as_text(value) for name, value in stored.items() if value is not None}
        values.update({name: environ[name] for name in SERVER_VARIABLES if environ.get(name)})
        if "AZUREML_ENTRY_SCRIPT" not in values:
            return None
        root = Path(values.get("AML_APP_ROOT") or Path.cwd()).absolute()
        script = root / values["AZUREML_ENTRY_SCRIPT"]
        if not script.is_file():
            raise InvalidSettings(f"AZUREML_ENTRY_SCRIPT: there is no file {script}")
        values["AML_APP_ROOT"] = str(root)
        unknown = tuple(sorted(set(stored) - set(SERVER_VARIABLES)))
        return cls(
            script, values, unknown, "the environment" if file is None else f"the environment and {file}"
        )

    def model(self) -> ModelSettings:
        """Return the settings of the script."""
        values = self.values
        # A variable of the process itself is inherited; one of the file has to be set.
        variables = {name: values[name] for name in _OF_THE_SCRIPT[2:] if name in values}
        given: dict[str, Any] = {"path": self.script, "environment_variables": variables}
        if "AZUREML_MODEL_DIR" in values:
            given["model_dir"] = Path(values["AZUREML_MODEL_DIR"]).absolute()
        if "SERVICE_NAME" in values:
            name = values["SERVICE_NAME"]
            given["name"] = name if is_name(name) else name_from_file(name)
        return model_settings(given, self.source)

    def imported(self) -> ImportedSettings:
        """Return the settings of the server, with notes for the operator on the others."""
        server = {setting: self.values[name] for name, setting in _SETTINGS.items() if name in self.values}
        notes = [f"{self.source}: AZUREML_ENTRY_SCRIPT {self.values['AZUREML_ENTRY_SCRIPT']} is served"]
        notes += [
            f"{name} has no effect: {why}" for name, why in _WITHOUT_EFFECT.items() if name in self.values
        ]
        if self.unknown:
            notes.append(
                f"names in config.json that are no settings of the server: {', '.join(self.unknown)}"
            )
        return ImportedSettings(self.source, server, notes=tuple(notes))


def _config_file(environ: Mapping[str, str]) -> Path | None:
    if environ.get("AZUREML_CONFIG_FILE"):
        return Path(environ["AZUREML_CONFIG_FILE"])
    root = Path(environ.get("AML_APP_ROOT") or Path.cwd())
    beside = (root / environ["AZUREML_ENTRY_SCRIPT"]).parent
    candidates = [folder / "config.json" for folder in (root, beside)]
    return next((file for file in candidates if file.is_file() and file.stat().st_size), None)


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
