"""The division of models into device processes, and the agreement of their replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.puppets import BODIES, ROWS
from tests.unit.supervisor.replicas.stage import WIDER, model

from stoker.control.device_messages import Loaded
from stoker.deployment import Deployment
from stoker.errors import InvalidSettings, LoadFailed
from stoker.metrics.layout import FIRST_DEVICE_PAGE, SUPERVISOR_PAGE
from stoker.row_isolation import RowIsolation
from stoker.script_form import ScriptForm
from stoker.settings.choices import Acceleration
from stoker.supervisor.groups import group
from stoker.supervisor.replicas import Replicas
from stoker.tensors import Signature


def formed(*models: Deployment) -> list[tuple[str, str]]:
    """The groups as device and description."""
    numbered = [replace(deployed, slot=slot, number=slot) for slot, deployed in enumerate(models)]
    return [(group.device, str(group)) for group in group(numbered)]


def test_models_share_the_processes_of_their_devices_and_scripts_do_not() -> None:
    """ONNX models and SavedModels of one device are together; each entry script and each pickle is alone."""
    assert formed(
        model("digits", "cpu"),
        model("first", "cpu", framework="script"),
        model("letters", "cpu", framework="tensorflow"),
        model("second", "cpu", framework="script"),
        model("homes", "cpu", framework="sklearn"),
        model("faces", "cuda:0"),
    ) == [*(("cpu", names) for names in ("digits, letters", "first", "second", "homes")), ("cuda:0", "faces")]


@pytest.mark.parametrize(
    ("acceleration", "alone"),
    [
        (Acceleration(xla=True), False),
        (Acceleration(memory_mb=9), True),
        (Acceleration(precision="fp32"), True),
    ],
)
def test_a_saved_model_with_settings_of_its_process_is_alone(acceleration: Acceleration, alone: bool) -> None:
    """TensorFlow has one memory limit and one precision in a process; ONNX Runtime has them in a session."""
    models = [model("first"), model("second", "cuda:0"), model("third", "cuda:0", framework="tensorflow")]
    groups = formed(*(replace(each, acceleration=acceleration) for each in models))
    assert groups == ([("cuda:0", "second"), ("cuda:0", "third")] if alone else [("cuda:0", "second, third")])


def test_the_replicas_of_a_model_are_in_different_processes() -> None:
    """The first ones of a device are together, then the second ones; a script's are its own."""
    assert formed(
        model("digits", "cpu", "cpu"),
        model("letters", "cpu"),
        model("faces", "cuda:0", "cpu", "cpu"),
        model("script", "cpu", "cpu", framework="script"),
    ) == [
        ("cpu", "digits (replica 1 of 2), letters, faces (replica 2 of 3)"),
        ("cpu", "digits (replica 2 of 2), faces (replica 3 of 3)"),
        ("cuda:0", "faces (replica 1 of 3)"),
        ("cpu", "script (replica 1 of 2)"),
        ("cpu", "script (replica 2 of 2)"),
    ]


def test_the_name_of_a_process_is_unique() -> None:
    """The name of its only model, with the number of the replica where there are several; else the device."""
    models = [model("a", "cpu"), model("b", "cpu"), model("odd", "cpu", "cpu", framework="script")]
    numbered = [replace(deployed, slot=slot, number=slot) for slot, deployed in enumerate(models)]
    assert [formed.short_name for formed in group(numbered)] == [
        "cpu",
        "odd (replica 1 of 2)",
        "odd (replica 2 of 2)",
    ]
    assert [formed.short_name for formed in group(numbered[:1])] == ["a"]


def test_every_process_has_a_page_of_the_metrics_and_there_are_so_many() -> None:
    """Pages are counted up; more processes than pages are refused before any of them starts."""
    most = SUPERVISOR_PAGE - FIRST_DEVICE_PAGE
    pages = [group.page for group in group([model("digits", *["cuda:0"] * most)])]
    assert pages == list(range(FIRST_DEVICE_PAGE, SUPERVISOR_PAGE))
    with pytest.raises(
        InvalidSettings, match=f"at most {most} device processes can run, .* ask for {most + 1}"
    ):
        group([model("digits", *["cuda:0"] * (most + 1))])


def test_replicas_that_differ_for_callers_are_refused() -> None:
    """Another shape is an error that shows both; once no other replica is loaded, a new signature is fine."""
    digits = model("digits", "cpu", "cuda:0")
    first, second = groups = group([digits])
    replicas = Replicas()
    for formed in groups:
        replicas.join(formed)

    def add(group: Any, signature: Signature, device: str) -> int:
        return replicas.add(group, Loaded(digits.number, signature, 1, 2, 8), device).generation

    add(first, ROWS, "cpu")
    with pytest.raises(LoadFailed) as refused:
        add(second, WIDER, "cuda:0")
    assert "the replicas of digits differ: x float32[n,3]" in str(refused.value)
    assert "on cuda:0, but x float32[n,2] -> y float32[n,2] on cpu" in str(refused.value)
    assert [lost.device for lost in replicas.remove(first)] == ["cpu"]
    assert add(second, WIDER, "cuda:0") == 2
    assert add(first, WIDER, "cpu") == 3
    assert replicas.is_complete(digits)
    assert [replica.generation for replica in replicas.of(digits)] == [3, 2]


def test_replicas_may_batch_differently() -> None:
    """How a script is batched is decided in each process by what it measures, and no caller sees it."""
    script = model("script", "cpu", "cpu", framework="script")
    groups = group([script])
    replicas = Replicas()
    for formed in groups:
        replicas.join(formed)
    for group_, form in zip(
        groups, [ScriptForm(batching="merge", batching_reason="agrees"), ScriptForm()], strict=True
    ):
        replicas.add(group_, Loaded(0, replace(BODIES, script=form), 0, 0, 8), "cpu")
    assert replicas.is_complete(script)


def test_replicas_need_not_agree_on_how_their_rows_were_tried() -> None:
    """There is time for more companions in one load than in another, and no caller sees it."""
    digits = model("digits", "cpu", "cpu")
    groups = group([digits])
    replicas = Replicas()
    for formed in groups:
        replicas.join(formed)
    for group_, companions in zip(groups, (20, 30), strict=True):
        tried = replace(ROWS, isolation=RowIsolation(True, "tested", f"{companions} companions", companions))
        replicas.add(group_, Loaded(0, tried, 0, 0, 8), "cpu")
    assert replicas.is_complete(digits)
