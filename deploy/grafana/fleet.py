"""The dashboard of a fleet: servers beside each other, and versions of a canary."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from panels import ALL, MODEL, board, columns, lines

__all__ = ["fleet"]


def _of_each(metric: str) -> str:
    return f"sum by (instance) (rate({metric}[$__rate_interval]))"


def fleet() -> Dashboard:
    """Return the dashboard."""
    total = f'stoker_stage_seconds_bucket{{{MODEL}, stage="total"}}'
    p99 = f"histogram_quantile(0.99, sum by (le, instance) (rate({total}[$__rate_interval])))"
    by_job = f"histogram_quantile(0.99, sum by (le, job) (rate({total}[$__rate_interval])))"
    requests = _of_each(f"stoker_requests_total{{{MODEL}}}")
    failed = _of_each(f'stoker_requests_total{{{MODEL}, status=~"5.."}}')
    restarts = "stoker_process_restarts_total"
    return board(
        "stoker-fleet",
        "Fleet",
        "Servers of one or several services beside each other: who is asked how much, and who is slow.",
        {
            "Servers": [
                columns(
                    "Servers",
                    "One line a server, now.",
                    {
                        "requests/s": (requests, "reqps"),
                        "failures/s": (failed, "reqps"),
                        "p99": (p99, "s"),
                        "load": (f"max by (instance) (stoker_load{{{MODEL}}})", "percentunit"),
                        "replicas": (f"sum by (instance) (stoker_ready_replicas{{{MODEL}}})", "short"),
                        "queue": (f"sum by (instance) (stoker_queue_rows{{{MODEL}}})", "short"),
                        "restarts": (f"sum by (instance) ({restarts}{{{ALL}}})", "short"),
                        "keys": (f"max by (instance) (stoker_keys_generation{{{ALL}}})", "none"),
                    },
                    by="instance",
                ),
            ],
            "Spread": [
                lines("Requests/s", "Of each server.", "reqps", {"{{instance}}": requests}, stacked=True),
                lines("p99", "Of each server.", "s", {"{{instance}}": p99}),
                lines(
                    "Load",
                    "The busiest model of each server; what autoscaling goes by.",
                    "percentunit",
                    {"{{instance}}": f"max by (instance) (stoker_load{{{MODEL}}})"},
                ),
                lines(
                    "Servers that answer Prometheus",
                    "",
                    "short",
                    {"{{job}}": f"sum by (job) (up{{{ALL}}})"},
                ),
                lines(
                    "Possible rows/s",
                    "Rows that full batches of all servers can compute.",
                    "rowsps",
                    {"{{job}}": f"sum by (job) (stoker_capacity_rows_per_second{{{MODEL}}})"},
                ),
                lines(
                    "Keys that hold",
                    "The number of the keys of each server; while keys are replaced they differ.",
                    "none",
                    {"{{instance}}": f"max by (instance) (stoker_keys_generation{{{ALL}}})"},
                ),
            ],
            "Services beside each other": [
                lines("p99", "A canary beside what it is to replace.", "s", {"{{job}}": by_job}),
                lines(
                    "Failures",
                    "Share of requests with statuses of 500 and more.",
                    "percentunit",
                    {"{{job}}": 'avg by (job) (job_model:stoker_failures:ratio_rate5m{job=~"$job"})'},
                ),
                lines(
                    "Requests/s",
                    "",
                    "reqps",
                    {"{{job}}": f"sum by (job) (rate(stoker_requests_total{{{MODEL}}}[$__rate_interval]))"},
                    stacked=True,
                ),
            ],
        },
    )
