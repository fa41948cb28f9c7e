"""From settings to what is served: which models, in which versions, each with its terms and on its devices.

`resolve` and `deploy` read downhill. The settings name models (`offers`), whose folders are looked at (`layouts`) or
whose registrations are read (`repository`); a version of one has files (`sources`), and of these and the settings
come what callers get (`model_terms`), what is loaded (`servables`) and where it runs (`placement`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from types import MappingProxyType

from stoker.environments.check import ModelEnvironment
from stoker.errors import InvalidSettings, OperatorError
from stoker.metrics.layout import MODEL_SLOTS
from stoker.models.mlflow_serving import folder_around, sample_request, write_sample
from stoker.models.model_links import link_models
from stoker.models.model_terms import terms_of
from stoker.models.offers import Meant, Offer, find_offers
from stoker.models.placement import Placement, place
from stoker.models.registered import Registered
from stoker.models.repository import Repository
from stoker.models.servables import servable_of
from stoker.models.setting_rules import check_settings
from stoker.models.sources import Broken, ModelSource
from stoker.servable import SAMPLE_FILES, Servable
from stoker.settings.choices import Adjustments
from stoker.settings.model import ModelSettings
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker.system.resources import usable_cores
from stoker.terms import Terms

__all__ = ["Deployed", "deploy", "resolve"]


@dataclasses.dataclass(frozen=True, slots=True)
class Deployed:
    """A version of a model as this server serves it.

    Attributes:
        servable: What the device process loads, with the version's terms.
        slot: Its slot in the metrics.
        number: What tells it from everything else that the server has loaded, another load of the same version too.
        max_delay_ms: How long its rows may wait for company.
        placement: Where its replicas run.
        threads: Threads that each replica may use for one CPU operation.
        environment: The packages that it asks for; None if no file says so.
        fingerprint: What was changed in its files since, if it is another one; see `ModelSource.fingerprint`.
        notes: What the operator is told of its configuration, a line each.
        audit_rate: How many of all its batches are audited, at most 1; 0 for none.
        origin: Where a registered version came from, as its callers may be told.
        adjustments: What of its settings is as somebody has asked for.
    """

    servable: Servable
    slot: int
    number: int
    max_delay_ms: float
    placement: Placement
    threads: int
    environment: ModelEnvironment | None = None
    fingerprint: str = ""
    notes: tuple[str, ...] = ()
    audit_rate: float = 0.0
    origin: Mapping[str, str] = field(default_factory=dict)
    adjustments: Adjustments = field(default_factory=Adjustments)

    @property
    def terms(self) -> Terms:
        """What it is allowed and told."""
        return self.servable.terms

    @property
    def interpreter(self) -> Path:
        """The Python that runs it."""
        return Path(sys.executable) if self.environment is None else self.environment.interpreter


def resolve(
    settings: ServerSettings,
    workspace: Workspace,
    leases: ExitStack,
    broken: Broken | None = None,
    meant: Meant = MappingProxyType({}),
) -> list[Deployed]:
    """Find what the settings name, in the versions that they ask for; with none named, every registered model.

    Registered versions are verified against their checksums, and held so that they cannot be deleted
    meanwhile.

    Args:
        settings: The server's settings.
        workspace: Where registered models are.
        leases: Receives what holds the registered versions.
        broken: Receives the versions that cannot be served; without it the first of them is an error.
        meant: See `find_offers`.

    Raises:
        RepositoryError: A model is unknown, ambiguous, or has changed since it was registered.
        LoadFailed: A description that the user has written cannot be read.
        InvalidSettings: Two models would have the same service name, or there are too many.
        EnvironmentUnusable: A file with the packages of a model cannot be read.
    """
    chosen = []
    for offer in find_offers(settings, workspace, meant).values():
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
            deployed.append(deploy(offer, version, number, number, settings, workspace, leases))
        except OperatorError as error:
            _note_broken(broken, offer.name, version, error)
    return deployed


def _note_broken(broken: Broken | None, name: str, version: int, error: OperatorError) -> None:
    if broken is None:
        raise error
    broken[name, version] = error


def deploy(
    offer: Offer,
    version: int,
    slot: int,
    number: int,
    settings: ServerSettings,
    workspace: Workspace,
    leases: ExitStack,
) -> Deployed:
    """Prepare one version of a model to be loaded: verify it, hold it, and find out how it is served.

    Args:
        offer: The model.
        version: The version.
        slot: Its slot in the metrics.
        number: What tells this load from all others.
        settings: The server's settings.
        workspace: Where registered models are.
        leases: Receives what holds the registered versions.

    Raises:
        OperatorError: As `resolve`.
    """
    source = offer.source(version)
    if source.registered is not None:
        leases.enter_context(source.registered.hold())
        source.registered.verify()
    check_settings(offer.settings, source, offer.settings.device or settings.device)
    model = _with_example(offer.settings, source, workspace)
    model_dir = _model_dir(model, source, workspace, leases)
    fingerprint = source.fingerprint()
    terms = terms_of(source, model_dir, model, settings, workspace)
    engines = _engine_cache(source, fingerprint, workspace) if model.provider == "tensorrt" else None
    cores = usable_cores()
    placement = place(model.device or settings.device, model.replicas or settings.replicas, cores)
    environment_dir = _environment_folder(source)
    return Deployed(
        servable_of(source, model_dir, model, settings, terms, engines),
        slot,
        number,
        settings.max_delay_ms if model.max_delay_ms is None else model.max_delay_ms,
        placement,
        _threads(model, settings, placement),
        environment=ModelEnvironment.of(model.environment, model.environment_managed, environment_dir),
        fingerprint=fingerprint,
        notes=() if source.config is None else source.config.notes,
        audit_rate=settings.audit if model.audit is None else model.audit,
        origin={} if source.registered is None else _origin(source.registered),
        adjustments=offer.adjustments,
    )


def _origin(registered: Registered) -> dict[str, str]:
    facts = {"registered": registered.created_at, "from": registered.source}
    return {
        **{name: value for name, value in facts.items() if value},
        **registered.properties,
        **registered.tags,
    }


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


def _model_dir(model: ModelSettings, source: ModelSource, workspace: Workspace, leases: ExitStack) -> Path:
    """The folder of a model's files: its setting's, one with the registered models that a script uses, or its own.

    Raises:
        InvalidSettings: The setting names no directory.
        RepositoryError: A model that the script uses is unknown or has changed since it was registered.
    """
    if model.uses:
        used = [Repository(workspace.models_dir).resolve(reference) for reference in model.uses]
        for registered in used:
            leases.enter_context(registered.hold())
            registered.verify()
        return link_models(used, workspace.create_run_dir())
    model_dir = model.model_dir or source.model_dir
    if not model_dir.is_dir():
        raise InvalidSettings(f"the model folder {model_dir} is not a directory")
    return model_dir


def _engine_cache(source: ModelSource, fingerprint: str, workspace: Workspace) -> Path:
    """The folder of what TensorRT has built of these files, and of no others."""
    held = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
    return workspace.create().engines_dir / f"{source.name}-{source.version}-{held}"


def _threads(model: ModelSettings, settings: ServerSettings, placement: Placement) -> int:
    """A replica's share of the server's threads, or fewer if the model says so."""
    share = max(1, settings.device_threads // max(1, placement.cpu_replicas))
    return min(share, model.threads or share)


def _environment_folder(source: ModelSource) -> Path | None:
    """Where a file with a model's packages is looked for: beside its code, in MLflow's or the registered folder."""
    if source.framework in ("script", "sklearn"):
        return source.path.parent
    return folder_around(source.path) if source.registered is None else source.registered.files_dir
