"""`/openapi.json`, the description of the server's API, and `/docs`, the page that shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stoker.gateway.describing.openapi import describe_server
from stoker.gateway.http.page_files import PageFiles
from stoker.gateway.http.requests import requester_of
from stoker.gateway.http.threads import run_in_thread
from stoker.gateway.protocols.access import readable_services
from stoker.samples.example_bodies import make_body
from stoker.settings.files import read_sample_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.scoring.service import Service

_PAGE: Final = Path(__file__).parent / "page"
_MOST_SAMPLE_BYTES: Final = 1 << 16


def docs_routes(gateway: Gateway) -> list[Route]:
    """Return the routes of the description and its page; none where they are switched off."""
    if not gateway.settings.docs:
        return []

    async def openapi(request: Request) -> Response:
        services = readable_services(gateway, requester_of(request))
        directory = gateway.directory
        examples = await run_in_thread(_find_examples, services)
        leading = directory.only if directory.traffic is None else directory.traffic.endpoint.leading
        return JSONResponse(describe_server(services, leading, examples, gateway.settings.naming))

    return [Route("/openapi.json", openapi), *PageFiles(_PAGE).routes("/docs")]


def _find_examples(services: Sequence[Service]) -> dict[str, Any]:
    """Return a body for each model that has a sample, or whose signature says what it takes."""
    examples = {}
    for service in services:
        body = _sample_of(service)
        if body is None and service.signature is not None:
            body = make_body(service.signature)
        if body is not None:
            examples[service.name] = body
    return examples


def _sample_of(service: Service) -> Any:
    deployment = service.facts.deployment
    sample = None if deployment is None else deployment.sample_file
    try:
        if sample is None or sample.suffix != ".json" or sample.stat().st_size > _MOST_SAMPLE_BYTES:
            return None
        return json.loads(read_sample_file(sample))
    except (OSError, ValueError):
        return None
