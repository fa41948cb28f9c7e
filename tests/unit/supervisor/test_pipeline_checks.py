"""Checks of pipelines before and after their models are loaded, and their rules for frontends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tests.puppets import ROWS, TEXTS

from stoker.control.frontend_messages import AskUnload, Refusal
from stoker.errors import InvalidSettings
from stoker.settings.model import ModelSettings
from stoker.settings.pipelines import Pipeline, Step
from stoker.settings.server import ServerSettings
from stoker.settings.versions import VersionStatus
from stoker.settings.workspace import Workspace
from stoker.supervisor import serving
from stoker.supervisor.catalogue import Catalogue, Model, Version
from stoker.supervisor.frontend_requests import FrontendRequests
from stoker.supervisor.pipeline_checks import check_models, join_pipelines, rules_of_pipelines
from stoker.supervisor.stock import Stock
from stoker.tensors import Signature

CHAIN = Pipeline(
    "chain", (Step("a", "double"), Step("b", "double", label="new", inputs={"x": "y"}, outputs={"y": "z"}))
)


def catalogue(*pipelines: Pipeline, labels: dict[str, int] | None = None) -> Catalogue:
    """One model, `double`, with the versions 1 and 2; 1 is the default."""
    made = Catalogue([], pipelines=pipelines)
    versions = {number: Version(VersionStatus(number, "AVAILABLE")) for number in (1, 2)}
    made.models["double"] = Model("double", versions, {1}, labels=labels or {}, default=1)
    return made


def reports(*signatures: Signature) -> list[Any]:
    """Reports on the versions of `double`, from 1."""
    return [
        SimpleNamespace(
            deployed=SimpleNamespace(name="double", version=number),
            signature=signature,
        )
        for number, signature in enumerate(signatures, 1)
    ]


@pytest.mark.parametrize(
    ("pipelines", "message"),
    [
        ([Pipeline("double", (Step("a", "double"),))], "a model and a pipeline would be served as 'double'"),
        (2 * [Pipeline("p", (Step("a", "double"),))], "two pipelines have the name 'p'"),
        (
            [Pipeline("p", (Step("a", "triple"),))],
            "the pipeline p: no model 'triple' is served, which the step a names",
        ),
        (
            [Pipeline("p", (Step("a", "double"),)), Pipeline("q", (Step("a", "p"),))],
            "the pipeline q: p is a pipeline, and steps are models; name its steps instead",
        ),
    ],
)
def test_names_are_checked_before_a_model_is_loaded(pipelines: list[Pipeline], message: str) -> None:
    """Models that are not served and duplicate names are refused at once."""
    with pytest.raises(InvalidSettings, match=message):
        check_models(pipelines, ["double"])


def test_the_server_ends_before_it_loads_a_model_for_a_pipeline_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are looked at as soon as it is known which models there are."""
    for name in ("configure_logging", "keep_memory_out_of_cores"):
        monkeypatch.setattr(serving, name, lambda *_, **__: None)
    monkeypatch.setattr(Stock, "prepare_first", lambda *_: pytest.fail("a model was prepared"))
    (tmp_path / "double" / "1").mkdir(parents=True)
    (tmp_path / "double" / "1" / "model.onnx").touch()
    settings = ServerSettings(models=(ModelSettings(path=tmp_path),))
    wrong = replace(settings, pipelines=(Pipeline("p", (Step("a", "triple"),)),))
    with pytest.raises(InvalidSettings, match="the pipeline p: no model 'triple' is served"):
        serving.serve(wrong, Workspace(tmp_path / "w"), 0.0)
    ensemble = tmp_path / "q" / "config.pbtxt"
    ensemble.parent.mkdir()
    step = 'model_name: "triple" input_map { key: "x" value: "i" } output_map { key: "y" value: "o" }'
    ensemble.write_text(f"ensemble_scheduling {{ step {{ {step} }} }}")
    with pytest.raises(InvalidSettings, match="the pipeline q: no model 'triple' is served"):
        serving.serve(replace(settings, exit_on_error=True), Workspace(tmp_path / "w"), 0.0)


def test_a_broken_ensemble_does_not_stop_others() -> None:
    """It is reported like a model that cannot be loaded: one ensemble lacks a model, and one does not fit."""
    lacking, misfit = Pipeline("p", (Step("a", "triple"),), optional=True), replace(CHAIN, optional=True)
    check_models([lacking, misfit], ["double"])
    joined, broken = join_pipelines([lacking, misfit], catalogue(labels={"new": 1}), reports(TEXTS))
    assert joined == {}
    assert [(name, str(error)) for (name, _), error in broken.items()] == [
        ("p", "step a: the model triple is not served"),
        ("chain", "the pipeline chain: b has no output 'y'; it has: result"),
    ]


def test_pipelines_are_joined_with_the_versions_that_their_steps_mean() -> None:
    """A label means its version, and no label the default."""
    joined, broken = join_pipelines([CHAIN], catalogue(labels={"new": 2}), reports(ROWS, ROWS))
    assert (str(joined["chain"]), broken) == ("x float32[n,2] -> z float32[n,2]", {})
    with pytest.raises(InvalidSettings, match="the pipeline chain: b has no output 'y'; it has: result"):
        join_pipelines([CHAIN], catalogue(labels={"new": 1}), reports(TEXTS))


def test_a_label_or_a_version_that_is_not_there_ends_the_start() -> None:
    """The message says which there are."""
    with pytest.raises(
        InvalidSettings,
        match="the pipeline chain: double has no label 'new', which the step b names; it has: old",
    ):
        join_pipelines([CHAIN], catalogue(labels={"old": 2}), reports(ROWS, ROWS))
    unmoved = Pipeline("p", (Step("a", "double", label="default"),))
    with pytest.raises(InvalidSettings, match=r"double has no label 'default', .*; it has: none"):
        join_pipelines([unmoved], catalogue(), reports(ROWS, ROWS))
    assert catalogue(unmoved).index()[-1]["state"] == "UNAVAILABLE"
    third = Pipeline("p", (Step("a", "double", version=3),))
    with pytest.raises(
        InvalidSettings, match=r"the pipeline p: version 3 of double, .* is not served; there are: 1, 2"
    ):
        join_pipelines([third], catalogue(), reports(ROWS, ROWS))


def test_a_pipeline_of_a_model_that_could_not_be_loaded_is_broken() -> None:
    """The others are served, as other models are."""
    joined, broken = join_pipelines([CHAIN], catalogue(labels={"new": 2}), reports(ROWS))
    assert joined == {}
    assert str(broken["chain", 1]) == "step b: the model double could not be loaded"


def test_the_index_has_pipelines_as_their_models_are() -> None:
    """A pipeline is listed, with the step that it lacks; beside models there is no model that is meant by no name."""
    served = catalogue(CHAIN, labels={"new": 2})
    assert served.index()[0] == {"name": "chain", "version": "1", "state": "READY"}
    assert served.only is None
    served.models["double"].versions[2].enter("END")
    entry = served.index()[0]
    assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", "step b: the model double is not served")


def test_frontends_get_the_rules_of_pipelines() -> None:
    """Its own timeout or the server's, and a slot of the metrics of its own."""
    quick = Pipeline("quick", CHAIN.steps, timeout_ms=5)
    settings = ServerSettings(pipelines=(CHAIN, quick), timeout_ms=70)
    rules = rules_of_pipelines(settings, catalogue(CHAIN, quick))
    assert [(one.pipeline.name, one.timeout_ms, one.slot) for one in rules] == [
        ("chain", 70, 0),
        ("quick", 5, 1),
    ]


def test_pipelines_are_not_loaded_and_unloaded_by_themselves() -> None:
    """The refusal names the models."""
    frontends, background = Mock(), Mock()
    requests = FrontendRequests(Mock(), frontends, background, Mock(), Mock(), {"chain": 3})
    requests.answer(Mock(), AskUnload(1, "chain", None))
    asyncio.run(background.spawn.call_args.args[0])
    refusal = frontends.reply.call_args.args[1]
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.error) == (
        400,
        "'chain' is a pipeline, which follows its models; load and unload these by their names",
    )
