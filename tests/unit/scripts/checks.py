"""Samples of scripts for the checks at load, and a check whether requests may be merged."""

import json
from collections.abc import Callable
from typing import Any

from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.merging_check import check_merging
from stoker.scripts.script_sample import Sample

ROW = [0.1, 0.2, 0.3, 0.4]
TWO_ROWS = (ROW, [0.9, 0.1, 0.5, 0.2])


def sample_of(body: Any) -> Sample:
    """A sample with this body."""
    return Sample(json.dumps(body).encode(), "application/json", "the sample")


ONE_ROW = sample_of({"data": [ROW]})


def merge(run: Callable[[Any], Any], *rows: Any) -> None:
    """Check whether requests of a script that gets rows may be merged."""
    calls = ScriptCalls(lambda raw_data: run(json.loads(raw_data)["data"]))
    check_merging(calls, sample_of({"data": list(rows)}), 16)
