"""Settings and hooks of all test runs."""

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

# Workers and all processes that tests start: each thread of OpenBLAS spins for 0.1 s when NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

TOGETHER: Final = (
    ("tests/contract/",),
    ("tests/http/",),
    (
        "tests/unit/stoker_training/",
        "tests/unit/importing/test_tensorflow_imports.py",
        "tests/unit/isolation/test_tensorflow_analysis.py",
        "tests/unit/runtimes/test_saved_models.py",
        "tests/unit/runtimes/test_text.py",
        "tests/unit/samples/test_samples.py",
        "tests/unit/wire/test_tfs_examples.py",
    ),
)
"""Files that share what is dear: servers of the whole session; TensorFlow, which each process imports for seconds."""

# Here and not in a hook: what a conftest.py of a folder imports may have settings that go on from these.
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
# Otherwise examples come from the constants of all modules that tests before have loaded too, and a test that failed
# would pass when it is run alone. Hypothesis has no setting for it.
patch.object(providers, "_get_local_constants", Constants).start()


def pytest_configure() -> None:
    """Let what tests start hear Ctrl-C, which a shell has them ignore in the background; call nobody."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Some tests import ONNX Runtime before Stoker.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Leave what a file of tests has imported and kept out of all later collections too.

    TensorFlow alone is a million objects, and some tests, and what they test, collect garbage again and again.
    """
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """With `--dist loadfile`, give what files share to one process, that it is not begun in each of them."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LoadSharersScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return next((group[0] for group in TOGETHER if scope.startswith(group)), scope)

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
