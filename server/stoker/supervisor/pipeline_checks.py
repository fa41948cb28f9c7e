"""Checks of pipelines against the models of a server, before and after these are loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from stoker.control.frontend_messages import PipelineRules
from stoker.errors import InvalidSettings, LoadFailed, OperatorError
from stoker.models.pipelines import join
from stoker.settings.pipelines import VERSION, Pipeline, Step
from stoker.settings.server import ServerSettings
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.reports import ModelReport
from stoker.tensors import Signature


def check_models(pipelines: Sequence[Pipeline], models: Collection[str]) -> None:
    """Refuse pipelines that have the name of a model, and steps whose models are not served.

    Optional pipelines may name models that are not served: requests to them get an error that says so.
    """
    names = Counter(pipeline.name for pipeline in pipelines)
    for pipeline in pipelines:
        if names[pipeline.name] > 1:
            raise InvalidSettings(f"two pipelines have the name {pipeline.name!r}; give them different names")
        if pipeline.name in models:
            raise InvalidSettings(
                f"a model and a pipeline would be served as {pipeline.name!r}; give them different names"
            )
        for step in pipeline.steps:
            if step.model in names:
                raise pipeline.wrong(
                    f"{step.model} is a pipeline, and steps are models; name its steps instead"
                )
            if step.model not in models and not pipeline.optional:
                raise pipeline.wrong(
                    f"no model {step.model!r} is served, which the step {step.name} names; there are: "
                    f"{', '.join(models)}"
                )


def rules_of_pipelines(settings: ServerSettings, catalogue: Catalogue) -> tuple[PipelineRules, ...]:
    """Return the rules of a server's pipelines for frontends."""
    return tuple(
        PipelineRules(
            pipeline,
            catalogue.pipelines[pipeline.name],
            settings.timeout_ms if pipeline.timeout_ms is None else pipeline.timeout_ms,
            settings.non_finite,
        )
        for pipeline in settings.pipelines
    )


def join_pipelines(
    pipelines: Sequence[Pipeline], catalogue: Catalogue, reports: Sequence[ModelReport]
) -> tuple[dict[str, Signature], dict[tuple[str, int], OperatorError]]:
    """Join the pipelines of a server with its models, after these have been loaded.

    Returns:
        The signature of each pipeline, and by name why others cannot be served: a model of theirs was not loaded.
    """
    signatures = {(report.deployed.name, report.deployed.version): report.signature for report in reports}
    joined: dict[str, Signature] = {}
    broken: dict[tuple[str, int], OperatorError] = {}
    for pipeline in pipelines:
        try:
            models = [_signature(pipeline, step, catalogue, signatures) for step in pipeline.steps]
            joined[pipeline.name] = join(pipeline, models).signature
        except LoadFailed as error:
            broken[pipeline.name, VERSION] = error
        except InvalidSettings as error:
            if not pipeline.optional:
                raise
            broken[pipeline.name, VERSION] = error
    return joined, broken


def _signature(
    pipeline: Pipeline, step: Step, catalogue: Catalogue, signatures: Mapping[tuple[str, int], Signature]
) -> Signature:
    model = catalogue.models.get(step.model)
    if model is None:
        raise LoadFailed(f"step {step.name}: the model {step.model} is not served")
    number = model.named(step.version, step.label)
    if number is None and step.label is not None:
        labels = ", ".join(model.labels) or "none"
        raise pipeline.wrong(
            f"{step.model} has no label {step.label!r}, which the step {step.name} names; it has: {labels}"
        )
    if step.version is not None and number not in model.versions:
        raise pipeline.wrong(
            f"version {number} of {step.model}, which the step {step.name} names, is not served; there are: "
            f"{', '.join(map(str, sorted(model.versions)))}"
        )
    signature = None if number is None else signatures.get((step.model, number))
    if signature is None:
        raise LoadFailed(f"step {step.name}: the model {step.model} could not be loaded")
    return signature
