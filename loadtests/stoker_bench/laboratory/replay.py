"""Recorded requests, and batch times learned by a running server, as input of simulations."""

from __future__ import annotations

import csv
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from stoker.errors import InvalidSettings
from stoker.settings.choices import TIERS
from stoker.simulation.workload import Curve, Requests

_TIMEOUT_S: Final = 10.0
_MEAN_SECONDS: Final = "stoker_batch_mean_seconds"
_MEAN_ROWS: Final = "stoker_batch_mean_rows"
_CAP: Final = "stoker_batch_cap_rows"


def read_requests(path: Path, target_ms: float) -> tuple[Requests, list[str]]:
    """Read requests from a CSV file with the columns `time` (seconds), `model` and `rows`; others are ignored.

    Returns:
        The requests in order of arrival, and the names of the models.

    Raises:
        InvalidSettings: The file cannot be read, or has no requests.
    """
    try:
        with path.open(newline="") as file:
            recorded = sorted(map(_recorded_request, csv.DictReader(file)))
    except (OSError, KeyError, ValueError) as error:
        raise InvalidSettings(
            f"{path} cannot be read as CSV with the columns time (seconds), model, rows, caller and tier: {error!r}"
        ) from error
    if not recorded or min(one.rows for one in recorded) < 1:
        raise InvalidSettings(f"{path} has no requests, or some without a row")
    models = sorted({one.model for one in recorded})
    callers = sorted({one.caller for one in recorded})
    begin_s = recorded[0].time_s
    requests = Requests(
        np.array([round((one.time_s - begin_s) * 1e9) for one in recorded], np.int64),
        np.array([one.rows for one in recorded], np.int64),
        np.array([models.index(one.model) for one in recorded], np.int64),
        np.full(len(recorded), round(target_ms * 1e6)),
        np.array([one.tier for one in recorded], np.int64),
        np.array([callers.index(one.caller) for one in recorded], np.int64),
    )
    return requests, models


class _RecordedRequest(NamedTuple):
    """One request of a file."""

    time_s: float
    model: str
    rows: int
    caller: str
    tier: int


def _recorded_request(row: dict[str, str]) -> _RecordedRequest:
    tier = TIERS.index(row.get("tier") or "normal")
    return _RecordedRequest(
        float(row["time"]),
        row.get("model") or "model",
        int(row.get("rows") or 1),
        row.get("caller") or "",
        tier,
    )


def read_curve(uri: str, model: str | None) -> Curve:
    """Read the batch times of a model from a running server.

    Args:
        uri: The server's `/metrics`, or its root.
        model: The model; None for the only one that has run batches.

    Raises:
        InvalidSettings: The server does not answer, or has not run batches of two sizes.
    """
    url = uri if uri.rstrip("/").endswith("/metrics") else f"{uri.rstrip('/')}/metrics"
    if not url.startswith(("http://", "https://")):
        raise InvalidSettings(f"{uri} is no address of a server: it begins with http:// or https://")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # its scheme was checked
            text = answer.read().decode()
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{url} cannot be read: {error}") from error
    return learned_curve(text, model)


def learned_curve(text: str, model: str | None) -> Curve:
    """Fit a line to the batch times in a server's metrics, by least squares of relative errors.

    Raises:
        InvalidSettings: The metrics have no batches of that model, or only of one size.
    """
    known: dict[str, dict[str, dict[str, float]]] = {}
    for family in text_string_to_metric_families(text):
        if family.name in (_MEAN_SECONDS, _MEAN_ROWS, _CAP):
            for sample in family.samples:
                of = known.setdefault(sample.labels["model"], {}).setdefault(sample.name, {})
                of[sample.labels.get("rows", "")] = sample.value
    measured = {name: facts for name, facts in known.items() if len(facts.get(_MEAN_SECONDS, {})) > 1}
    if model is None and len(measured) == 1:
        model = next(iter(measured))
    if model is None or model not in measured:
        raise InvalidSettings(
            "say with --model which model's times are meant; those of which batches of two sizes have run: "
            f"{', '.join(measured) or 'none'}"
        )
    facts = measured[model]
    sizes = facts[_MEAN_SECONDS]
    line = _line((facts[_MEAN_ROWS][size], seconds * 1000) for size, seconds in sizes.items())
    return Curve(*line, int(facts.get(_CAP, {}).get("", 0)) or 256)


def _line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    rows, ms = np.array(list(points)).T
    left = np.stack((1 / ms, rows / ms), axis=1)
    (a, b), *_ = np.linalg.lstsq(left, np.ones(len(ms)), rcond=None)
    if a < 0:
        a, b = 0.0, float((rows / ms).sum() / ((rows / ms) ** 2).sum())
    return float(a), max(1e-6, float(b))
