"""Models that get processes of their own after crashes of a shared one."""

from __future__ import annotations

from tests.unit.supervisor.replicas.stage import model

from stoker.metrics.layout import FIRST_DEVICE_PAGE
from stoker.metrics.memory import MetricMemory
from stoker.supervisor.crashes import Crashes
from stoker.supervisor.groups import Group

DIGITS, FACES = model("digits", "cpu"), model("faces", "cpu", slot=1)


def crash(loading: bool, *running: int) -> Crashes:
    """Count one crash of a process with both models: while it loaded the first one, or while these slots ran."""
    fd = MetricMemory.create()
    memory = MetricMemory(fd)
    for slot in running:
        memory.page(FIRST_DEVICE_PAGE).model(slot).run_began[0] = 1
    crashes = Crashes(memory)
    group = Group(FIRST_DEVICE_PAGE, "cpu", [(DIGITS, 0), (FACES, 0)])
    crashes.count_crash(group, DIGITS if loading else None)
    return crashes


def test_crash_during_a_load_is_the_loading_models() -> None:
    """One crash is enough; the models that ran are not suspected."""
    crashes = crash(True, 1)
    assert crashes.are_frequent(DIGITS)
    assert not crashes.are_frequent(FACES)


def test_crash_while_one_model_runs_is_that_models() -> None:
    """Nobody else can have caused it."""
    crashes = crash(False, 1)
    assert crashes.are_frequent(FACES)
    assert not crashes.are_frequent(DIGITS)


def test_crash_while_two_models_run_is_counted_for_both() -> None:
    """Either may have caused it, so that it takes two crashes."""
    crashes = crash(False, 0, 1)
    assert not crashes.are_frequent(DIGITS)
    assert not crashes.are_frequent(FACES)


def test_hang_during_a_load_is_enough() -> None:
    """The next load would hang as well."""
    crashes = crash(False)
    crashes.count_hang(FACES)
    assert crashes.are_frequent(FACES)
