"""TorchServe's handlers: found by the manifest, initialised once, called with the rows of several requests."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from stoker.errors import LoadFailed, RequestError
from stoker.scripts.refusals import refusal_of, refusal_with
from stoker.scripts.request_batches import BatchRun
from stoker.system.durable import read_regular
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest
from stoker_torchserve.examples import make_examples
from stoker_torchserve.manifest import DEFAULT_HANDLERS, MAX_TEXT_BYTES, Manifest, read_manifest
from stoker_torchserve.metrics_config import METRICS_FILE_VARIABLE
from stoker_torchserve.model_config import parse_model_config
from stoker_torchserve.rows import encode_answer, read_row
from stoker_torchserve.ts import __version__
from stoker_torchserve.ts.context import Context
from stoker_torchserve.ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from stoker_torchserve.ts.utils.util import PredictionException, list_classes_from_module
from stoker_torchserve.ts_imports import check_imports, install

if TYPE_CHECKING:
    from stoker.deployment import Deployment

logger = logging.getLogger(__name__)

_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

Entry = Callable[[Any, Context], Any]


class HandlerRun(BatchRun):
    """A handler as the `run` of an entry script."""

    def __init__(self) -> None:
        self._handle: Entry
        self._context: Context
        self._takes_images = False

    def load(self, folder: Path, *, device: str) -> None:
        """Find the handler of an unpacked archive, and initialise it.

        The working directory becomes the archive's folder, where modules are looked for first.

        Args:
            device: `cpu`, or the GPU as frameworks call it: `cuda:0`.

        Raises:
            LoadFailed: There is no such handler.
        """
        manifest = read_manifest(folder)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        threads = os.environ.get("STOKER_INTRA_OP_THREADS")
        if threads:
            # Read by PyTorch when it is imported.
            os.environ.update({name: os.environ.get(name) or threads for name in _THREADS})
        install()
        check_imports(folder, [manifest.handler_module, manifest.model_file.removesuffix(".py")])
        gpu_id = int(device.partition(":")[2] or 0) if device.startswith("cuda") else None
        config = _model_config(folder, manifest)
        self._context = Context(
            manifest.model_name,
            str(folder),
            manifest.document,
            config.get("batchSize", 1),
            gpu_id,
            __version__,
            True,
            _declared_metrics(manifest),
            config,
        )
        self._handle, initialise = find_entry(_handler_module(folder, manifest), manifest.handler_function)
        initialise(self._context)
        owner = getattr(self._handle, "__self__", None)
        self._takes_images = bool(getattr(owner, "takes_images", False))

    def __call__(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Answer requests in one call of `handle`; those that cannot be read are told so."""
        answers: dict[int, ScriptAnswer] = {}
        read = {}
        for place, request in enumerate(requests):
            try:
                read[place] = read_row(request)
            except RequestError as error:
                answers[place] = refusal_of(error)
        if read:
            rows, heads = zip(*read.values(), strict=True)
            context = self._context
            context.request_processor = list(heads)
            context.request_ids = {
                number: requests[place].request_id.decode(errors="replace")
                for number, place in enumerate(read)
            }
            context.metrics.set_request_ids(context.request_ids)
            results = self._handle(list(rows), context)
            if not isinstance(results, list) or len(results) != len(rows):
                found = len(results) if isinstance(results, list) else type(results).__name__
                raise ValueError(
                    f"handle() returned {found} for {len(rows)} requests; it has to be a list of as many"
                )
            for place, result, head in zip(read, results, heads, strict=True):
                answers[place] = encode_answer(result, head)
        return [answers[place] for place in range(len(requests))]

    def examples(self, deployment: Deployment, count: int) -> list[ScriptRequest]:
        """Return requests made from the sample input; for a handler of images without one, made-up images."""
        return make_examples(deployment.sample_file, count, images=self._takes_images)

    def refusal(self, error: Exception) -> ScriptAnswer | None:
        """Return a `PredictionException` with its status and message."""
        if not isinstance(error, PredictionException):
            return None
        status = error.error_code
        if not isinstance(status, int) or not 400 <= status < 600:
            return None
        return refusal_with(error, str(error.message), status)


def _declared_metrics(manifest: Manifest) -> MetricsCacheYamlImpl:
    metrics = MetricsCacheYamlImpl(os.environ.get(METRICS_FILE_VARIABLE), manifest.model_name)
    try:
        metrics.initialize_cache()
    except ValueError as error:
        raise LoadFailed(str(error)) from error
    return metrics


def _model_config(folder: Path, manifest: Manifest) -> dict[str, Any]:
    if not manifest.config_file:
        return {}
    try:
        return parse_model_config(read_regular(folder / manifest.config_file, MAX_TEXT_BYTES))
    except (OSError, ValueError) as error:
        raise LoadFailed(f"{manifest.config_file} of the archive cannot be read: {error}") from error


def _handler_module(folder: Path, manifest: Manifest) -> ModuleType:
    """Import the module of the handler: a file of the archive, or one of TorchServe's."""
    name = manifest.handler_module
    if (folder / f"{name}.py").is_file():
        module = importlib.import_module(name)
        if Path(module.__file__ or "").parent.resolve() != folder.resolve():
            raise LoadFailed(f"the handler {name}.py is called like a module of Python; give it another name")
        return module
    if name not in DEFAULT_HANDLERS:
        raise LoadFailed(
            f"the handler {manifest.handler} is neither a file of the archive nor one of TorchServe's that Stoker "
            f"provides: {', '.join(DEFAULT_HANDLERS)}"
        )
    return importlib.import_module(f"ts.torch_handler.{name}")


def find_entry(module: ModuleType, function: str) -> tuple[Entry, Callable[[Context], object]]:
    """Return what answers rows in a handler's module, and what initialises it.

    A function, `handle` if no other is named, is initialised by a call without rows; else the only class of the
    module, by its `initialize`.

    Raises:
        LoadFailed: There is neither.
    """
    found = getattr(module, function or "handle", None)
    if found is not None and not inspect.isclass(found):
        return found, lambda context: found(None, context)
    if function and found is None:
        raise LoadFailed(f"the handler {module.__name__}.py has no {function}")
    classes = [found] if inspect.isclass(found) else list_classes_from_module(module)
    if len(classes) != 1:
        names = ", ".join(kind.__name__ for kind in classes) or "none"
        raise LoadFailed(
            f"the handler {module.__name__}.py needs a function handle(data, context), or one class with that; "
            f"its classes: {names}"
        )
    service = classes[0]()
    for method in ("initialize", "handle"):
        if not callable(getattr(service, method, None)):
            raise LoadFailed(f"the class {classes[0].__name__} of the handler has no {method}()")
    return service.handle, service.initialize
