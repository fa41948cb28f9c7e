"""Settings and hooks of all test runs."""

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

TOGETHER: Final = ("tests/contract/", "tests/http/", "tests/unit/stoker_training/")
"""Folders whose files share what is dear: servers of the whole session, TensorFlow, a model that was trained."""


def pytest_configure() -> None:
    """Let what tests start hear Ctrl-C, which a shell has them ignore in the background; call nobody."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Some tests import ONNX Runtime before Stoker.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # How long examples take says more of what else the machine does than of them; pytest's own limit ends what hangs.
    # Each run has the same examples, whatever the runs before it have found: a commit is judged by what it changes.
    settings.register_profile(
        "patient",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=True,
        database=None,
    )
    settings.load_profile("patient")
    # `make examples`: four times as many where a test does not say how many.
    settings.register_profile("long", settings.get_profile("patient"), max_examples=400)
    # `make hunt`: examples that nobody has tried.
    settings.register_profile(
        "hunt", settings.get_profile("patient"), derandomize=False, max_examples=1000, print_blob=True
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without collecting garbage, and leave them out of all later collections.

    Modules and tests are a million objects that live until the end; looking at them again and again took a tenth of
    the time of all tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """With `--dist loadfile`, give what a folder shares to one process, that it is not begun in each of them."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LoadSharersScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return next((folder for folder in TOGETHER if scope.startswith(folder)), scope)

    return LoadSharersScheduling(config, log)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that a test runs may set logging up, with a stream that is closed when the test has ended."""
    root = logging.getLogger()
    level, before = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in list(root.handlers):
        if handler not in before:
            root.removeHandler(handler)


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, as the server does."""
    return "asyncio"
