"""`azureml.pipeline`: chains of steps, which are not offered: every class says what to do instead."""

from __future__ import annotations

from typing import Any

from stoker_azure.sdk.unoffered import NotAClass

__all__ = ["Pipeline", "PipelineData", "PipelineEndpoint", "PublishedPipeline"]

_INSTEAD = (
    "submit each script with Experiment.submit(ScriptRunConfig(…)) and wait_for_completion(), one after the other, "
    "and hand on their outputs by a data store"
)


def _unoffered(name: str) -> Any:
    return NotAClass(name, (), {"INSTEAD": _INSTEAD, "__module__": __name__})


Pipeline = _unoffered("Pipeline")
PipelineData = _unoffered("PipelineData")
PipelineEndpoint = _unoffered("PipelineEndpoint")
PublishedPipeline = _unoffered("PublishedPipeline")


def __getattr__(name: str) -> Any:
    """Steps and what belongs to them."""
    if name.startswith("_") or not name[0].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _unoffered(name)
