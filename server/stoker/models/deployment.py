"""From settings to the list of servables: which models, which version, on which slot."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from stoker.collecting.collection import CollectionSettings
from stoker.declaration import Declaration
from stoker.environments.model_environment import ModelEnvironment
from stoker.errors import InvalidSettings, OperatorError
from stoker.metrics import MODEL_SLOTS
from stoker.models.layouts import Broken, ModelSource
from stoker.models.mlflow_serving import ENTRY_SCRIPT, folder_around, sample_request, write_sample
from stoker.models.model_links import link_models
from stoker.models.offers import Offer, find_offers
from stoker.models.placement import Placement, place
from stoker.models.repository import Repository
from stoker.models.swagger_files import find_swagger_files
from stoker.non_finite import WORDS, NonFinite
from stoker.servable import SAMPLE_FILES, Servable
from stoker.settings.acceleration import Acceleration, check_acceleration
from stoker.settings.image_input import ImageInput, read_image_input
from stoker.settings.model import ModelSettings
from stoker.settings.server import ServerSettings
from stoker.system.extras import how_to_install
from stoker.workspace import Workspace

__all__ = ["Deployed", "deploy", "resolve"]

logger = logging.getLogger(__name__)

_FOR_THE_FILES_OF_SCRIPTS: Final = ("uses", "model_dir")
_FOR_SCRIPTS: Final = (*_FOR_THE_FILES_OF_SCRIPTS, "environment_variables", "tensorflow_compat")
_BATCHING: Final = {True: ("auto", "merge", "handle", "none"), False: ("auto", "rows", "none")}
"""How requests can be batched, by whether an entry script answers them."""
# Azure's own default.
_MAX_QUEUE_WAIT_MS: Final = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Deployed:
    """A servable with its batching settings and its place.

    Attributes:
        servable: What the device process loads.
        slot: Its slot in the metrics.
        number: What tells it from everything else that the server has loaded, another load of the same version too.
        max_delay_ms: How long its rows may wait for company.
        placement: Where its replicas run.
        threads: Threads that each replica may use for one CPU operation.
        timeout_ms: A request not answered by then gets 504.
        max_concurrent_requests: Most requests in flight in all frontends together; None is without limit.
        max_queue_wait_ms: How long further requests wait.
        description: The operator's words for its description.
        environment: The packages that it asks for; None if no file says so.
        image: How its input is made from images; None if it takes none.
        collection: What is collected of its requests and answers; None for nothing.
        data_dir: Where that is written.
        swagger_files: The user's own descriptions by Swagger version.
        fingerprint: What was changed in its files since, if it is another one; see `ModelSource.fingerprint`.
        load_timeout_s: How long a device process may take to load it.
        non_finite: What becomes of NaN and infinities in the JSON of its answers.
        notes: What the operator is told of its configuration, a line each.
        audit_rate: How many of all its batches are audited, at most 1; 0 for none.
    """

    servable: Servable
    slot: int
    max_delay_ms: float
    placement: Placement
    threads: int
    timeout_ms: int
    max_concurrent_requests: int | None = None
    max_queue_wait_ms: int = _MAX_QUEUE_WAIT_MS
    description: str | None = None
    environment: ModelEnvironment | None = None
    image: ImageInput | None = None
    collection: CollectionSettings | None = None
    data_dir: Path | None = None
    swagger_files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    number: int = 0
    fingerprint: str = ""
    load_timeout_s: float = math.inf
    non_finite: NonFinite = WORDS
    notes: tuple[str, ...] = ()
    audit_rate: float = 0.0

    @property
    def interpreter(self) -> Path:
        """The Python that runs it."""
        return Path(sys.executable) if self.environment is None else self.environment.interpreter

    def limit_of(self, frontend: int, frontends: int) -> int | None:
        """What one frontend, of those numbered from 0, keeps of `max_concurrent_requests`; at least 1."""
        limit = self.max_concurrent_requests
        if limit is None:
            return None
        return max(1, limit // frontends + (frontend < limit % frontends))


def resolve(
    settings: ServerSettings, workspace: Workspace, leases: ExitStack, broken: Broken | None = None
) -> list[Deployed]:
    """Find what the settings name, in the versions that they ask for; with none named, every registered model.

    Registered versions are verified against their checksums, and held so that they cannot be deleted
    meanwhile.

    Args:
        settings: The server's settings.
        workspace: Where registered models are.
        leases: Receives what holds the registered versions.
        broken: Receives the versions that cannot be served; without it the first of them is an error.

    Raises:
        RepositoryError: A model is unknown, ambiguous, or has changed since it was registered.
        LoadFailed: A description that the user has written cannot be read.
        InvalidSettings: Two models would have the same service name, or there are too many.
        EnvironmentUnusable: A file with the packages of a model cannot be read.
    """
    chosen = []
    for offer in find_offers(settings, workspace).values():
        try:
            chosen += [(offer, version) for version in offer.wanted()]
        except OperatorError as error:
            _note_broken(broken, offer.name, offer.likely_version, error)
    if len(chosen) > MODEL_SLOTS:
        raise InvalidSettings(
            f"at most {MODEL_SLOTS} versions of models can be served at once, {len(chosen)} were named"
        )
    deployed = []
    for number, (offer, version) in enumerate(chosen):
        try:
            deployed.append(deploy(offer, version, number, settings, workspace, leases))
        except OperatorError as error:
            _note_broken(broken, offer.name, version, error)
    return deployed


def _note_broken(broken: Broken | None, name: str, version: int, error: OperatorError) -> None:
    if broken is None:
        raise error
    broken[name, version] = error


def deploy(
    offer: Offer, version: int, slot: int, settings: ServerSettings, workspace: Workspace, leases: ExitStack
) -> Deployed:
    """Prepare one version of a model to be loaded: verify it, hold it, and find out how it is served.

    Args:
        offer: The model.
        version: The version.
        slot: Its slot in the metrics, and its number until the caller gives it another one.
        settings: The server's settings.
        workspace: Where registered models are.
        leases: Receives what holds the registered versions.

    Raises:
        OperatorError: As `resolve`.
    """
    source, model = offer.source(version), offer.settings
    if source.registered is not None:
        leases.enter_context(source.registered.hold())
        source.registered.verify()
    used = _used_models(model, source, workspace, leases)
    model = _with_example(model, source, workspace)
    return _with_data(
        _deployed(model, source, slot, settings, used),
        _image(model, source),
        _collection(model, settings),
        workspace,
    )


def _used_models(
    model: ModelSettings, source: ModelSource, workspace: Workspace, leases: ExitStack
) -> Path | None:
    """The folder of registered models that an entry script uses; None if it names none.

    Raises:
        InvalidSettings: The model is no entry script, or has a folder of its own as well.
        RepositoryError: A model is unknown or has changed since it was registered.
    """
    if source.framework != "script":
        defaults = ModelSettings()
        for name in _FOR_THE_FILES_OF_SCRIPTS if source.framework == "mlflow" else _FOR_SCRIPTS:
            if getattr(model, name) != getattr(defaults, name):
                raise InvalidSettings(f"{source.name} is no entry script: {name} is for those alone")
    elif model.non_finite is not None:
        raise InvalidSettings(
            f"{source.name} is an entry script, which writes its answers itself: leave non_finite out"
        )
    _check_batching(model, source)
    if model.zipmap != ModelSettings().zipmap and source.framework != "onnx":
        raise InvalidSettings(f"{source.name} is no ONNX model: zipmap is for those alone")
    if not model.uses:
        return None
    if model.model_dir is not None:
        raise InvalidSettings(
            f"{source.name} has model_dir and uses; AZUREML_MODEL_DIR can only be one of both"
        )
    used = [Repository(workspace.models_dir).resolve(reference) for reference in model.uses]
    for registered in used:
        leases.enter_context(registered.hold())
        registered.verify()
    return link_models(used, workspace.create_run_dir())


def _check_batching(model: ModelSettings, source: ModelSource) -> None:
    is_script = source.framework in ("script", "mlflow")
    if is_script and model.audit:
        raise InvalidSettings(
            f"{source.name} is an entry script: audit is for models alone, for running a script again may do more "
            "than compute; leave it out"
        )
    if model.batching not in _BATCHING[is_script]:
        kind = "an entry script" if is_script else "no entry script"
        known = ", ".join(_BATCHING[is_script])
        raise InvalidSettings(f"{source.name} is {kind}: batching is one of {known}, not {model.batching}")


def _with_example(model: ModelSettings, source: ModelSource, workspace: Workspace) -> ModelSettings:
    """The settings of a model, with the input example that MLflow keeps as the sample where there is no other."""
    folder = folder_around(source.path)
    if folder is None or model.sample_input is not None:
        return model
    if any((folder / name).is_file() for name in SAMPLE_FILES):
        return model
    sample = sample_request(folder, arrays=source.framework != "mlflow")
    if sample is None:
        return model
    return dataclasses.replace(model, sample_input=write_sample(sample, workspace.create().run_dir))


def _deployed(
    model: ModelSettings, source: ModelSource, slot: int, settings: ServerSettings, used_models: Path | None
) -> Deployed:
    max_batch_rows = model.max_batch_rows or settings.max_batch_rows
    max_delay_ms = settings.max_delay_ms if model.max_delay_ms is None else model.max_delay_ms
    model_dir = model.model_dir or used_models or source.model_dir
    timeout_ms = model.timeout_ms or settings.timeout_ms
    if not model_dir.is_dir():
        raise InvalidSettings(f"the model folder {model_dir} is not a directory")
    if model.sample_input is not None and not model.sample_input.is_file():
        raise InvalidSettings(f"the sample input {model.sample_input} is not a file")
    acceleration = Acceleration(
        model.provider, model.precision, model.gpu_memory_mb, model.execution, model.xla
    )
    # A model of MLflow that no runtime loads is served by a script of ours.
    framework = "script" if source.framework == "mlflow" else source.framework
    check_acceleration(source.name, framework, acceleration)
    servable = Servable(
        name=source.name,
        version=source.version,
        framework=framework,
        path=ENTRY_SCRIPT if source.framework == "mlflow" else _absolute(source.path),
        model_dir=_absolute(model_dir),
        max_batch_rows=max_batch_rows,
        max_body_bytes=settings.max_body_bytes,
        timeout_ms=timeout_ms,
        environment_variables=model.environment_variables or {},
        tensorflow_compat=model.tensorflow_compat,
        batching=model.batching,
        sample_input=model.sample_input and _absolute(model.sample_input),
        signatures=_signatures(model, source),
        pad=model.pad or {},
        instances=model.instances,
        batch_buckets=model.batch_buckets,
        acceleration=acceleration,
        declaration=_declaration(model, source),
        warm_up=() if source.config is None else source.config.warm_up,
        zipmap=model.zipmap,
    )
    placement = place(
        model.device or settings.device,
        model.replicas or settings.replicas,
        len(os.sched_getaffinity(0)),
    )
    threads = max(1, settings.device_threads // max(1, placement.cpu_replicas))
    return Deployed(
        servable,
        slot,
        max_delay_ms,
        placement,
        min(threads, model.threads or threads),
        timeout_ms,
        model.max_concurrent_requests,
        _MAX_QUEUE_WAIT_MS if model.max_queue_wait_ms is None else model.max_queue_wait_ms,
        model.description,
        ModelEnvironment.of(model.environment, model.environment_managed, _environment_folder(source)),
        swagger_files=find_swagger_files(servable, {**os.environ, **servable.environment_variables}),
        number=slot,
        fingerprint=source.fingerprint(),
        load_timeout_s=model.load_timeout_s or settings.load_timeout_s,
        non_finite=model.non_finite or settings.non_finite,
        notes=() if source.config is None else source.config.notes,
        audit_rate=settings.audit if model.audit is None else model.audit,
    )


def _signatures(model: ModelSettings, source: ModelSource) -> tuple[str, ...]:
    """Which signatures are served, if the settings say so; only SavedModels have some."""
    if model.signature is not None and source.framework != "tensorflow":
        raise InvalidSettings(f"{source.name} is no SavedModel: signature is for those alone")
    return model.signature or ()


def _declaration(model: ModelSettings, source: ModelSource) -> Declaration | None:
    """What config.pbtxt says of the tensors; whoever says how many rows a batch has, knows better of that axis."""
    if source.config is None:
        return None
    declaration = source.config.declaration
    known_better = declaration.batched is False and (model.max_batch_rows or model.batching == "rows")
    return dataclasses.replace(declaration, batched=None) if known_better else declaration


def _image(model: ModelSettings, source: ModelSource) -> ImageInput | None:
    """How a model's input is made from images: as its settings say, else as it was registered."""
    registered = None if source.registered is None else source.registered.image
    if find_spec("PIL") is None:
        missing = f"images are decoded by Pillow, which is not installed; {how_to_install('images')}"
        if model.image is not None:
            raise InvalidSettings(f"{source.name}: {missing}")
        if registered is not None:
            logger.warning("%s takes no images, only numbers: %s", source.name, missing)
        return None
    if model.image is None and registered is not None:
        return read_image_input(registered)
    return model.image


def _collection(model: ModelSettings, settings: ServerSettings) -> CollectionSettings | None:
    """What is collected of a model: as its own settings say, else as the server's do."""
    collection = model.collect
    if collection is None and settings.collect:
        collection = CollectionSettings()
    if collection and collection.format == "parquet" and find_spec("pyarrow") is None:
        raise InvalidSettings(
            f"collect: the format parquet is written by pyarrow, which is not installed; {how_to_install('parquet')}"
        )
    return collection or None


def _with_data(
    deployed: Deployed, image: ImageInput | None, collection: CollectionSettings | None, workspace: Workspace
) -> Deployed:
    data_dir = None if collection is None else workspace.create().data_dir / deployed.servable.name
    if deployed.servable.acceleration.provider == "tensorrt":
        servable, held = deployed.servable, hashlib.sha256(deployed.fingerprint.encode()).hexdigest()[:16]
        engines = workspace.create().engines_dir / f"{servable.name}-{servable.version}-{held}"
        deployed = dataclasses.replace(deployed, servable=dataclasses.replace(servable, engine_cache=engines))
    if collection is not None and deployed.servable.framework == "script":
        collected = workspace.model_data_dir / deployed.servable.name
        servable = dataclasses.replace(
            deployed.servable, collection=collection, model_data_dir=_absolute(collected)
        )
        deployed = dataclasses.replace(deployed, servable=servable)
    servable = dataclasses.replace(deployed.servable, image=image)
    return dataclasses.replace(
        deployed, servable=servable, image=image, collection=collection, data_dir=data_dir
    )


def _environment_folder(source: ModelSource) -> Path | None:
    """Where a file with a model's packages is looked for: beside a script, in MLflow's or the registered folder."""
    if source.framework == "script":
        return source.path.parent
    if source.registered is None:
        return folder_around(source.path)
    return source.registered.files_dir if source.registered is not None else None


def _absolute(path: Path) -> Path:
    return path.absolute()
