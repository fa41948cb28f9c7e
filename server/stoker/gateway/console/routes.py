"""The console over HTTP: its page, whose files are public, and its figures, which need a key (decision 32)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
import orjson
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from stoker import __version__
from stoker.errors import RequestError
from stoker.gateway.console.figures import figures, remarkable_requests
from stoker.gateway.describing.model_config import platform
from stoker.gateway.http.encodings import compress_body
from stoker.gateway.http.page_files import PageFiles
from stoker.gateway.http.requests import authorization_of, requester_of
from stoker.gateway.http.responses import split_lines
from stoker.gateway.http.threads import run_in_thread
from stoker.gateway.model_directory import SERVICE_PATH
from stoker.gateway.protocols.access import check_caller
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.keys.keyring import bearer_of
from stoker.metrics.history import RINGS, Past
from stoker.wire.datatypes import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.scoring.service import Service
    from stoker.gateway.served_models import ServedModel
    from stoker.metrics.totals import Totals
    from stoker.settings.traffic import Endpoint
    from stoker.tensors import TensorInfo

_PAGE: Final = Path(__file__).parent / "page"


def is_browser(accept: str) -> bool:
    """Whether a header `Accept` names HTML, as those of browsers do and those of probes do not."""
    return any(part.partition(";")[0].strip().lower() == "text/html" for part in accept.split(","))


def lead_to_console() -> Response:
    """Redirect to the console; relative, so that it works behind the path of a proxy."""
    return RedirectResponse("console/", headers={"vary": "accept", "cache-control": "no-store"})


def describe_models(gateway: Gateway, caller: CallerTerms = DEFAULT) -> list[dict[str, Any]]:
    """Return the models that the caller may use, with all versions that have been served, as JSON has it."""
    totals = gateway.metrics.totals()
    traffic = gateway.directory.traffic
    return [
        _model(totals, name, model, None if traffic is None else traffic.endpoint)
        for name, model in gateway.directory.models.items()
        if caller.may_ask(name)
    ]


def _model(totals: Totals, name: str, model: ServedModel, endpoint: Endpoint | None) -> dict[str, Any]:
    versions = []
    weights = {model.default: 1} if model.split is None else model.split.weights
    for number, version in model.versions.items():
        status = version.status
        shown: dict[str, Any] = {
            "version": number,
            "state": status.shown_state,
            "reason": status.reason,
            "error": status.error,
            "share_percent": round(100 * weights.get(number, 0) / max(1, sum(weights.values())), 1),
        }
        if version.service is not None:
            counters = totals.model(status.slot)
            shown |= _service(version.service)
            shown |= {
                "ready": version.service.ready,
                "replicas": counters.ready_replicas,
                "batch_cap_rows": counters.batch_cap_rows,
            }
        versions.append(shown)
    return {
        "name": name,
        "default": model.default,
        "labels": dict(model.labels),
        "weights": {} if model.split is None else dict(model.split.weights),
        "endpoint": None
        if endpoint is None or name not in endpoint.shares
        else {"name": endpoint.name, "share_percent": endpoint.shares[name]},
        "path": f"{SERVICE_PATH}{quote(name)}/score",
        "versions": versions,
    }


def _service(service: Service) -> dict[str, Any]:
    facts, signature = service.facts, service.signature
    deployment = facts.deployment
    shown: dict[str, Any] = {
        "framework": facts.framework,
        "platform": platform(facts.framework),
        "description": facts.description,
        "images": service.images is not None,
        "texts": signature is not None and signature.callers is not None,
        "sequences": signature is not None and signature.sequences,
        "takes": None,
        "inputs": [],
        "outputs": [],
        "batching": None,
    }
    if deployment is not None:
        buckets = deployment.batch_buckets
        shown |= {
            "devices": list(deployment.devices),
            "instances": deployment.instances,
            "max_batch_rows": deployment.max_batch_rows,
            "max_delay_ms": deployment.max_delay_ms,
            "buckets": None if buckets is None else list(buckets),
            "precision": deployment.acceleration.precision,
            "gpu_memory_mb": deployment.acceleration.memory_mb,
            "origin": dict(deployment.origin),
        }
    if signature is None:
        return shown
    tensors, script = signature.model_tensors, signature.script
    shown["takes"] = signature.takes
    if tensors is not None:
        shown |= {"inputs": _sides(tensors.inputs), "outputs": _sides(tensors.outputs)}
    if script is not None:
        shown["batching"] = {"how": script.batching, "reason": script.batching_reason}
        shown["example"] = (script.input_schema or {}).get("example")
    elif signature.isolation is not None:
        shown["batching"] = {"how": str(signature.isolation), **msgspec.structs.asdict(signature.isolation)}
    return shown


def _sides(infos: Sequence[TensorInfo]) -> list[dict[str, Any]]:
    return [
        {
            "name": info.name,
            "datatype": DATATYPES[info.dtype],
            "shape": list(info.shape),
            "labels": list(info.labels),
        }
        for info in infos
    ]


_MOST_DIGITS: Final = 18


def console_routes(gateway: Gateway) -> list[Route]:
    """Return the routes below `/console`; none where the console is switched off."""
    if gateway.past is None:
        return []
    figures = _Figures(gateway, gateway.past)
    return [
        *PageFiles(_PAGE).routes("/console"),
        Route("/console/figures", figures.figures),
        Route("/console/models", figures.models),
        Route("/console/requests", figures.requests),
        Route("/console/sign-in", figures.sign_in, methods=["POST"]),
    ]


class _Figures:
    """The figures, for callers with a key of any service."""

    def __init__(self, gateway: Gateway, past: Past) -> None:
        self._gateway = gateway
        self._past = past

    async def figures(self, request: Request) -> Response:
        """Return the steps that the page does not have yet, of all models that the caller may use or of one."""
        caller = self._check(request)
        names = request.query_params.getlist("model")
        slots = [
            version.status.slot
            for name, model in self._gateway.directory.models.items()
            if caller.may_ask(name) and (not names or name in names)
            for version in model.versions.values()
            if version.has_counters
        ]
        step_s = _number(request, "step_s") or 1
        if step_s not in RINGS:
            raise RequestError(f"step_s has to be {' or '.join(map(str, RINGS))}.")
        found = await run_in_thread(figures, self._past, slots, _number(request, "since"), step_s)
        return await _json(request, found)

    async def models(self, request: Request) -> Response:
        """Return the models that the caller may use with their state, and the server's."""
        caller = self._check(request)
        administration = self._gateway.administration
        totals = self._gateway.metrics.totals()
        memory = totals.on_demand()
        found = {
            "server": __version__,
            "keyless": self._gateway.settings.keyless,
            "changes": "" if administration is None else administration.access.refusal,
            "admin_key": administration is not None and not administration.access.callers.open,
            "gpus": [
                {
                    name: getattr(gpu, name)
                    for name in ("index", "uuid", "memory_used_bytes", "memory_total_bytes")
                }
                for gpu in totals.gpus()
            ],
            # Of models that are loaded on demand.
            "memory": {
                "used_bytes": memory.used_bytes,
                "budget_bytes": memory.budget_bytes,
                "on_gpus": memory.on_gpus,
            },
            "models": describe_models(self._gateway, caller),
        }
        return await _json(request, found)

    async def requests(self, request: Request) -> Response:
        """Return the last failures and the slowest requests, with the figures of the second of each."""
        caller = self._check(request)
        journal = self._gateway.journal
        if journal is None:
            return await _json(request, {"failed": [], "slow": []})
        slots = {
            (name, number): version.status.slot
            for name, model in self._gateway.directory.models.items()
            if caller.may_ask(name)
            for number, version in model.versions.items()
            if version.has_counters
        }
        found = await run_in_thread(remarkable_requests, journal, self._past, slots, caller)
        return await _json(request, found)

    async def sign_in(self, request: Request) -> Response:
        """Return the primary keys of all services for the token of the link that the server has printed."""
        administration = self._gateway.administration
        token = bearer_of(authorization_of(request)).decode("latin-1")
        keys = {} if administration is None else await administration.sign_in(token)
        return await _json(request, {"keys": keys})

    def _check(self, request: Request) -> CallerTerms:
        return (
            DEFAULT if self._gateway.settings.keyless else check_caller(self._gateway, requester_of(request))
        )


def _number(request: Request, name: str) -> int:
    """Return a number of the query, 0 by default."""
    text = request.query_params.get(name, "0")
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise RequestError(f"{name} has to be a whole number.")
    return int(text)


async def _json(request: Request, content: object) -> Response:
    body, coding = await compress_body(
        orjson.dumps(content), request.headers.get("accept-encoding", "").encode("latin-1")
    )
    response = Response(body, media_type="application/json", headers={"cache-control": "no-store"})
    response.raw_headers.extend(split_lines(coding))
    return response
