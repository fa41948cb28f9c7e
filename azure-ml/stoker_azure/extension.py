"""The functions of this distribution that the server finds by entry points (decision 46). Imports little."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stoker_azure.finder import install
from stoker_azure.wsgi import raw_http_requested

if TYPE_CHECKING:
    from werkzeug.wrappers import Request, Response

    from stoker.wire.script_requests import RequestHead, ScriptAnswer

__all__ = [
    "answer_from",
    "configurations",
    "enter",
    "flask_context",
    "install",
    "plan_fields",
    "raw_http_requested",
    "request_from",
    "run_program",
]


def request_from(head: RequestHead, body: bytes) -> Request:
    """Return the request object for a `run` that `rawhttp` decorates."""
    from stoker_azure.aml_request import request_from

    return request_from(head, body)


def answer_from(response: Response) -> ScriptAnswer:
    """Return a script's response as it is sent."""
    from stoker_azure.aml_response import answer_from

    return answer_from(response)


def flask_context(head: RequestHead, body: bytes) -> AbstractContextManager[object]:
    """Return the context of Flask for a request."""
    from stoker_azure.wsgi import flask_context

    return flask_context(head, body)


def configurations() -> ModuleType:
    """Return the module with the configurations that `stoker serve` reads."""
    import stoker_azure.config

    return stoker_azure.config


def plan_fields(file: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the plan that a `deploymentconfig.json` gives for a cluster."""
    from stoker_azure.config import DeploymentConfig
    from stoker_azure.sdk.services.cluster_deploying import planned

    return planned(DeploymentConfig.from_file(file), given)


def enter() -> None:
    """Prepare this process for code written for Azure's SDK, as `import stoker.azure` does."""
    from stoker_azure.entrance import enter

    enter()


def run_program() -> int:
    """Run a program as `python -m stoker.azure` does; returns the exit code."""
    from stoker_azure.__main__ import main

    return main()
