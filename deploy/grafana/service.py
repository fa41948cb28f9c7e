"""The dashboard of a service: is it healthy, what is refused, and where does the time go."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from panels import MODEL, board, heat, lines, number

__all__ = ["service"]

_REQUESTS = f"rate(stoker_requests_total{{{MODEL}}}[$__rate_interval])"
_FAILED = f'rate(stoker_requests_total{{{MODEL}, status=~"5.."}}[$__rate_interval])'
_TOTAL = f'rate(stoker_stage_seconds_bucket{{{MODEL}, stage="total"}}[$__rate_interval])'


def _stage_mean(stage: str) -> str:
    inside = f'{MODEL}, stage="{stage}"'
    spent = f"sum(rate(stoker_stage_seconds_sum{{{inside}}}[$__rate_interval]))"
    return f"{spent} / sum(rate(stoker_stage_seconds_count{{{inside}}}[$__rate_interval]))"


def service() -> Dashboard:
    """Return the dashboard."""
    quantiles = {
        f"p{100 * q:g}": f"histogram_quantile({q}, sum by (le) ({_TOTAL}))" for q in (0.5, 0.95, 0.99)
    }
    return board(
        "stoker-service",
        "Service",
        "Health of a scoring service: requests, failures, latency, refusals, and how near it is to its limits.",
        {
            "Now": [
                number(
                    "Requests/s", "Scoring requests answered, all statuses.", "reqps", f"sum({_REQUESTS})"
                ),
                number(
                    "Failures",
                    "Share of requests that the server failed: statuses of 500 and more, 503 among them.",
                    "percentunit",
                    f"(sum({_FAILED}) or vector(0)) / sum({_REQUESTS})",
                ),
                number(
                    "p99", "99 of 100 requests took at most this, from body to answer.", "s", quantiles["p99"]
                ),
                number(
                    "In time",
                    "Share of answered rows that met the target of their model; none where no model has one.",
                    "percentunit",
                    f"sum(rate(stoker_in_target_total{{{MODEL}}}[$__rate_interval]))"
                    f" / sum(rate(stoker_answers_total{{{MODEL}}}[$__rate_interval]))",
                ),
                number(
                    "Load",
                    "Requested rows by those of full batches, of the busiest model. Above 1 queues grow.",
                    "percentunit",
                    f"max(stoker_load{{{MODEL}}})",
                ),
                number(
                    "Replicas ready",
                    "Replicas that are loaded, of all models.",
                    "short",
                    f"sum(stoker_ready_replicas{{{MODEL}}})",
                ),
            ],
            "Requests": [
                lines(
                    "Requests by status",
                    "499 is a caller who went away, 503 no room, 504 a missed deadline.",
                    "reqps",
                    {"{{status}}": f"sum by (status) ({_REQUESTS})"},
                    stacked=True,
                ),
                lines("Latency", "From the whole body to the answer.", "s", quantiles),
                heat(
                    "Latency, all of it", "How many requests took how long.", "s", f"sum by (le) ({_TOTAL})"
                ),
            ],
            "Time and queue": [
                lines(
                    "Where the time goes",
                    "Means: parsing a body, waiting of a row, computing of a batch.",
                    "s",
                    {stage: _stage_mean(stage) for stage in ("parse", "queue", "compute")},
                    stacked=True,
                ),
                lines(
                    "Rows in flight and in the queue",
                    "Rows that requests hold, and those of them that wait for a device.",
                    "short",
                    {
                        "in flight": f"sum(stoker_rows_in_flight{{{MODEL}}})",
                        "in the queue": f"sum(stoker_queue_rows{{{MODEL}}})",
                    },
                ),
                lines(
                    "Asked and possible",
                    "Rows answered in a second, and rows that full batches would do.",
                    "rowsps",
                    {
                        "answered": f"sum(rate(stoker_rows_total{{{MODEL}}}[$__rate_interval]))",
                        "possible": f"sum(stoker_capacity_rows_per_second{{{MODEL}}})",
                    },
                ),
            ],
            "Refusals and faults": [
                lines(
                    "Refused by reason",
                    "Requests that no device saw.",
                    "reqps",
                    {
                        "{{reason}}": "sum by (reason) "
                        f"(rate(stoker_rejections_total{{{MODEL}}}[$__rate_interval]))"
                    },
                    stacked=True,
                ),
                lines(
                    "Told to come back",
                    "Requests refused with a time to come back: too late for a target, no row, a quota.",
                    "reqps",
                    {
                        "{{reason}}, {{tier}}": "sum by (reason, tier) "
                        f"(rate(stoker_refusals_total{{{MODEL}}}[$__rate_interval]))"
                    },
                    stacked=True,
                ),
                lines(
                    "Device time by caller",
                    "Seconds of devices in a second, of callers by their names.",
                    "percentunit",
                    {
                        "{{caller}}": "sum by (caller) (rate(stoker_caller_device_seconds_total"
                        '{job=~"$job", instance=~"$instance"}[$__rate_interval]))'
                    },
                    stacked=True,
                ),
                lines(
                    "Error budget burn, of 99.9 %",
                    "How many times faster than allowed failures come; at 14.4 a month's budget is gone in two days.",
                    "short",
                    {
                        window: f'max(job_model:stoker_failures:ratio_rate{window}{{job=~"$job", model=~"$model"}})'
                        " / 0.001"
                        for window in ("5m", "1h", "6h")
                    },
                ),
                lines(
                    "Processes started again",
                    "A device process that died is started again; so is a frontend.",
                    "short",
                    {
                        "{{process}}": "sum by (process) (increase(stoker_process_restarts_total"
                        '{job=~"$job", instance=~"$instance"}[$__rate_interval]))'
                    },
                ),
                lines(
                    "Memory of large bodies",
                    "Memory of bodies above 1 MiB, and its limit.",
                    "bytes",
                    {
                        "taken": 'sum(stoker_large_body_bytes{job=~"$job", instance=~"$instance"})',
                        "budget": 'sum(stoker_large_body_budget_bytes{job=~"$job", instance=~"$instance"})',
                    },
                ),
                lines(
                    "Connections closed unserved",
                    "A frontend had no file descriptors for them.",
                    "short",
                    {
                        "closed": "sum(increase(stoker_accept_failures_total"
                        '{job=~"$job", instance=~"$instance"}[$__rate_interval]))'
                    },
                ),
                lines(
                    "Collected records",
                    "Sampled requests that were written, and those that were not.",
                    "short",
                    {
                        "written": f"sum(rate(stoker_collected_records_total{{{MODEL}}}[$__rate_interval]))",
                        "not: {{reason}}": "sum by (reason) "
                        f"(rate(stoker_collection_dropped_total{{{MODEL}}}[$__rate_interval]))",
                    },
                ),
            ],
        },
    )
