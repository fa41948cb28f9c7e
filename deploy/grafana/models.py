"""The dashboard of models: how each is batched, what its batches take, and how its versions compare."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from panels import MODEL, board, heat, lines

__all__ = ["models"]


def _per_second(counter: str, *by: str, more: str = "") -> str:
    return f"sum by ({', '.join(by)}) (rate({counter}{{{MODEL}{more}}}[$__rate_interval]))"


def _p99(stage: str) -> str:
    buckets = _per_second("stoker_stage_seconds_bucket", "le", "model", "version", more=f', stage="{stage}"')
    return f"histogram_quantile(0.99, {buckets})"


_OF = "{{model}} {{version}}"


def models() -> Dashboard:
    """Return the dashboard."""
    rows = _per_second("stoker_batch_rows_sum", "model", "version")
    batches = _per_second("stoker_batch_rows_count", "model", "version")
    padding = _per_second("stoker_batch_padding_rows_total", "model", "version")
    late = _per_second("stoker_in_target_total", "model", "version")
    answered = _per_second("stoker_answers_total", "model", "version")
    hits = _per_second("stoker_cache_hits_total", "model", "version")
    misses = _per_second("stoker_cache_misses_total", "model", "version")
    compared = _per_second("stoker_compared_answers_total", "model", "version", "result")
    return board(
        "stoker-models",
        "Models",
        "Each model: rows, batches, times by stage, versions beside each other, and what its checks found.",
        {
            "Work": [
                lines(
                    "Rows/s",
                    "Rows of requests answered with 200.",
                    "rowsps",
                    {_OF: _per_second("stoker_rows_total", "model", "version")},
                ),
                lines("p99", "From the whole body to the answer.", "s", {_OF: _p99("total")}),
                lines(
                    "In time",
                    "Share of answered rows that met the target; only models with `target_ms`.",
                    "percentunit",
                    {_OF: f"{late} / {answered}"},
                    most=1,
                ),
                lines("p99 of the queue", "How long rows wait for a device.", "s", {_OF: _p99("queue")}),
                lines(
                    "p99 of computing", "How long the device computes a batch.", "s", {_OF: _p99("compute")}
                ),
                lines(
                    "Load",
                    "Requested rows, divided by the rows that full batches can compute.",
                    "percentunit",
                    {_OF: f"max by (model, version) (stoker_load{{{MODEL}}})"},
                ),
            ],
            "Batches": [
                heat(
                    "Rows a batch",
                    "How many batches had how many rows.",
                    "short",
                    _per_second("stoker_batch_rows_bucket", "le"),
                ),
                lines("Mean rows a batch", "", "short", {_OF: f"{rows} / {batches}"}),
                lines(
                    "Why batches left",
                    "Full; the device was free; company was waited for long enough; a deadline pressed; "
                    "what targets allowed; a turn of a shared device.",
                    "cps",
                    {"{{reason}}": _per_second("stoker_dispatches_total", "reason")},
                    stacked=True,
                ),
                lines(
                    "Padding",
                    "Share of computed rows that only filled batches up to a bucket.",
                    "percentunit",
                    {_OF: f"{padding} / ({rows} + {padding})"},
                ),
                lines(
                    "Most rows that a batch may have",
                    "Less than `max_batch_rows` where memory ran out; 1 where an audit of batching failed.",
                    "short",
                    {_OF: f"min by (model, version) (stoker_batch_cap_rows{{{MODEL}}})"},
                ),
                lines(
                    "Time of batches",
                    "Mean time of the latest batches of at least so many rows.",
                    "s",
                    {
                        f"{_OF}, {{{{rows}}}}": "avg by (model, version, rows) "
                        f"(stoker_batch_mean_seconds{{{MODEL}}})"
                    },
                ),
            ],
            "Kept answers": [
                lines(
                    "Found",
                    "Share of requests whose answer was kept; only models with `cache_mb`.",
                    "percentunit",
                    {_OF: f"{hits} / ({hits} + {misses})"},
                    most=1,
                ),
                lines(
                    "Memory of kept answers",
                    "In all frontends.",
                    "bytes",
                    {_OF: f"sum by (model, version) (stoker_cache_bytes{{{MODEL}}})"},
                ),
                lines(
                    "Forgotten for others",
                    "",
                    "cps",
                    {_OF: _per_second("stoker_cache_evictions_total", "model", "version")},
                ),
            ],
            "Versions": [
                lines(
                    "Share of requests",
                    "Of those that name no version.",
                    "percentunit",
                    {_OF: f"avg by (model, version) (stoker_version_share_ratio{{{MODEL}}})"},
                    most=1,
                ),
                lines(
                    "Answers compared with the version before",
                    "Before a version takes over, and while it does.",
                    "cps",
                    {f"{_OF}: {{{{result}}}}": compared},
                ),
                lines(
                    "Other classes than the version before",
                    "Of the requests compared.",
                    "cps",
                    {_OF: _per_second("stoker_compared_flips_total", "model", "version")},
                ),
                lines(
                    "Decided on versions",
                    "Passed, warned of, refused, or rolled back.",
                    "short",
                    {
                        f"{_OF}: {{{{decision}}}}": "sum by (model, version, decision) "
                        f"(stoker_takeover_decisions_total{{{MODEL}}})"
                    },
                ),
            ],
            "Checks": [
                lines(
                    "Audits of running batches",
                    "Rows run again beside others; one that failed switches batching of its model off.",
                    "cps",
                    {
                        "{{model}}: {{result}}": _per_second(
                            "stoker_isolation_audits_total", "model", "result"
                        )
                    },
                ),
                lines(
                    "Answers that are not finite",
                    "Though all that the row holds is.",
                    "rowsps",
                    {_OF: _per_second("stoker_non_finite_answers_total", "model", "version")},
                ),
                lines(
                    "Expected over actual time of batches",
                    "Median; 1 is exact. Only models with `target_ms`.",
                    "short",
                    {
                        _OF: "histogram_quantile(0.5, "
                        + _per_second("stoker_expected_over_actual_bucket", "le", "model", "version")
                        + ")"
                    },
                ),
            ],
        },
    )
