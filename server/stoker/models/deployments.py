"""From settings to what is served: which models, in which versions, and the `Deployment` of each.

The settings name models (`available_models`), which are found in folders (`layouts`) or registered (`repository`). A
version of a model has files (`sources`). The files and the settings make the deployment. Settings that a deployment
has under the same name are copied by name, so a new one needs no line here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stoker.deployment import SAMPLE_FILES, Declaration, Deployment
from stoker.environments.location import locate_environment
from stoker.errors import InvalidSettings, OperatorError
from stoker.metrics.layout import MODEL_SLOTS, UNLOADED_SLOT
from stoker.models.available_models import AvailableModel, EarlierLabels, find_available_models
from stoker.models.frameworks import RUN_BY_SCRIPTS, Framework, defines_triton_model
from stoker.models.mlflow_serving import ENTRY_SCRIPT, folder_around, sample_request, write_sample
from stoker.models.model_links import link_models
from stoker.models.placement import Placement, place
from stoker.models.registered import Registered
from stoker.models.repository import Repository
from stoker.models.setting_rules import check_settings, may_run_code
from stoker.models.sources import Broken, ModelSource, reading_model
from stoker.models.swagger_files import find_swagger_files
from stoker.models.tokenizers import find_text_input
from stoker.models.way_choice import choose_here
from stoker.models.way_measuring import Bench
from stoker.settings.choices import WAY_NAMES, Acceleration, check_acceleration
from stoker.settings.collection import CollectionSettings
from stoker.settings.image_input import ImageInput, read_image_input
from stoker.settings.model import ModelSettings
from stoker.settings.model_limits import find_limit
from stoker.settings.server import ServerSettings
from stoker.settings.traffic import Bounds, Parity
from stoker.settings.workspace import Workspace
from stoker.system.extensions import require_extension
from stoker.system.extras import how_to_install
from stoker.system.resources import usable_cores

if TYPE_CHECKING:
    from stoker.environments.check import ModelEnvironment

logger = logging.getLogger(__name__)

_OWN_NAMES: Final = frozenset(field.name for field in dataclasses.fields(Deployment))


def resolve(
    settings: ServerSettings,
    workspace: Workspace,
    leases: ExitStack,
    broken: Broken | None = None,
    earlier_labels: EarlierLabels = MappingProxyType({}),
) -> list[Deployment]:
    """Find the models that the settings name, and deploy them; see `find_available_models` and `deploy_all`."""
    available = find_available_models(settings, workspace, earlier_labels)
    return deploy_all(available, settings, workspace, leases, broken)


def deploy_all(
    available: Mapping[str, AvailableModel],
    settings: ServerSettings,
    workspace: Workspace,
    leases: ExitStack,
    broken: Broken | None = None,
) -> list[Deployment]:
    """Deploy models in the versions that their settings ask for.

    Registered versions are verified against their checksums, and leased so that they cannot be deleted meanwhile.

    Args:
        leases: Receives the leases of the registered versions.
        broken: Receives the versions that cannot be served; without it the first of them is an error.
    """
    chosen = []
    for entry in available.values():
        try:
            chosen += [(entry, version) for version in entry.chosen_versions()]
        except OperatorError as error:
            _note_broken(broken, entry.name, entry.likely_version, error)
    resident = sum(not is_on_demand(entry.name, entry.settings, settings) for entry, _ in chosen)
    if resident > (most := MODEL_SLOTS if settings.memory_mb is None else UNLOADED_SLOT):
        raise InvalidSettings(
            f"at most {most} versions of models can be served at once, {resident} were named; with memory_mb, "
            "more are loaded on demand"
        )
    deployments: list[Deployment] = []
    slots = itertools.count()
    for number, (entry, version) in enumerate(chosen):
        slot = UNLOADED_SLOT if is_on_demand(entry.name, entry.settings, settings) else next(slots)
        try:
            with reading_model(entry.name):
                deployments.append(deploy(entry, version, slot, number, settings, workspace, leases))
        except OperatorError as error:
            _note_broken(broken, entry.name, version, error)
    return deployments


def is_on_demand(name: str, model: ModelSettings, settings: ServerSettings) -> bool:
    """Whether a model is loaded by its first request: a budget of memory is set, and the model may be unloaded.

    Pipelines are joined with the loaded models of their steps, and sequences would lose their state.
    """
    if settings.memory_mb is None or model.always_loaded or model.sequence is not None:
        return False
    return all(step.model != name for pipeline in settings.pipelines for step in pipeline.steps)


def _note_broken(broken: Broken | None, name: str, version: int, error: OperatorError) -> None:
    if broken is None:
        raise error
    broken[name, version] = error


def deploy(
    entry: AvailableModel,
    version: int,
    slot: int,
    number: int,
    settings: ServerSettings,
    workspace: Workspace,
    leases: ExitStack,
) -> Deployment:
    """Prepare one version of a model to be loaded: lease and verify its files, and make its deployment.

    A version that is loaded on demand is verified when it is loaded.

    Args:
        leases: Receives the leases of the registered versions.
    """
    source = entry.source(version)
    on_demand = is_on_demand(entry.name, entry.settings, settings)
    if source.registered is not None:
        leases.enter_context(source.registered.hold())
        if not on_demand:
            source.registered.verify()
    model = entry.settings
    if model.allow_pickle is None:
        model = dataclasses.replace(model, allow_pickle=settings.allow_pickle)
    model, source, note = _on_chosen_way(model, source, settings, workspace)
    check_settings(model, source, model.device or settings.device)
    model = _with_example(model, source, workspace)
    model_dir = _model_dir(model, source, workspace, leases)
    values = _same_names(settings, model) | _own_values(source, model, model_dir, settings, workspace)
    values |= {"number": number, "slot": slot, "adjustments": entry.adjustments, "on_demand": on_demand}
    values["limit"] = find_limit(settings.model_limits, entry.name)
    if note:
        values["notes"] = (*values.get("notes", ()), note)
    return Deployment(**values)


def _on_chosen_way(
    model: ModelSettings, source: ModelSource, settings: ServerSettings, workspace: Workspace
) -> tuple[ModelSettings, ModelSource, str]:
    """Resolve the way in which an imported model runs: the one that `execution` names, or the fastest that agrees.

    Returns:
        The settings without the name of a way, the source with the way's file, and a line for the operator, which is
        empty if there is nothing to say.
    """
    named = model.execution if model.execution in WAY_NAMES else None
    registered = source.registered
    if registered is None or registered.ways is None:
        if named is not None:
            raise InvalidSettings(
                f"{source.name} was not imported, so there is no choice of ways: leave execution: {named} out, or "
                "import it (stoker models import PATH)"
            )
        return model, source, ""
    ways, note = registered.ways, ""
    if "aoti" in ways.ways and not may_run_code(model, source):
        raise InvalidSettings(
            f"{source.name} lies in a folder of models, and loading one of its ways runs compiled code: trust it "
            "with allow_pickle: true (--allow-pickle), or register it (stoker models pull)"
        )
    if named is None:
        device = (model.device or settings.device)[0]
        limit_s = model.load_timeout_s or settings.load_timeout_s
        bench = Bench(
            registered.reference, registered.files_dir, device, ways.tolerance, ways.max_batch_rows, limit_s
        )
        chosen, note = choose_here(ways, registered.digest, bench, workspace.engines_dir)
    elif named in ways.ways:
        chosen = named
    else:
        raise InvalidSettings(
            f"{registered.reference} has no way {named}; its ways are {', '.join(ways.ways)} (stoker models show "
            f"{registered.reference})"
        )
    way = ways.ways[chosen]
    replaced = msgspec.structs.replace(source, framework=way.framework, path=registered.files_dir / way.entry)
    if named is not None:
        model = dataclasses.replace(model, execution="auto")
    if chosen == "aoti":
        model = dataclasses.replace(model, allow_pickle=True)
    if way.provider != "cuda":
        model = dataclasses.replace(model, provider=way.provider)
    return model, replaced, note


def _own_values(
    source: ModelSource, model: ModelSettings, model_dir: Path, settings: ServerSettings, workspace: Workspace
) -> dict[str, Any]:
    """Return the fields of a deployment that are no copies of settings."""
    # Stoker's own scripts serve models of MLflow that no runtime loads, and archives of TorchServe.
    is_script = source.framework in RUN_BY_SCRIPTS
    framework = "script" if is_script else source.framework
    path = _script_for(source.framework) or source.path.absolute()
    script = path if is_script else None
    fingerprint = source.fingerprint()
    placement = place(model.device or settings.device, model.replicas or settings.replicas, usable_cores())
    collection = _collection(model, settings)
    environment_file = model.environment
    if environment_file is None and source.framework == "torchserve":
        environment_file = require_extension("torchserve").find_requirements(model_dir)
    environment = locate_environment(environment_file, model.environment_managed, _environment_folder(source))
    values = {
        "name": source.name,
        "version": source.version,
        "framework": framework,
        "path": path,
        "model_dir": model_dir.absolute(),
        "fingerprint": fingerprint,
        "origin": {} if source.registered is None else _origin(source.registered),
        "devices": placement.devices,
        "shortfall": placement.shortfall,
        "threads": _threads(framework, model, settings, placement),
        "environment": environment,
        "signatures": model.signature or (),
        "sample_input": model.sample_input and model.sample_input.absolute(),
        "image": _image(model, source),
        "text": find_text_input(source, model_dir, model),
        "acceleration": _acceleration(model, source.name, framework),
        "engine_cache": _engine_cache(model, source, framework, fingerprint, placement, workspace),
        "admission": model.admission or ("rows" if model.target_ms is None else "target"),
        "cache_bytes": 0 if model.cache_mb is None else int(model.cache_mb * 2**20),
        "swagger_files": find_swagger_files(
            script, model_dir, {**os.environ, **(model.environment_variables or {})}
        ),
        "collection": collection,
        "rollback": Bounds() if model.rollback is None else model.rollback or None,
        "parity": _parity(model, settings),
    }
    if source.notes:
        values["notes"] = source.notes
    if source.config is not None:
        values["notes"] = source.config.notes
        values["warm_up"] = source.config.warm_up
        values["declaration"] = _declaration(model, source.config.declaration)
        values["model_config"] = source.config.model_config
    elif source.framework == "script" and defines_triton_model(path):
        values["model_config"] = json.dumps({"name": source.name, "backend": "python"})
    if collection is not None:
        values["data_dir"] = workspace.create().data_dir / source.name
        if is_script:
            values["model_data_dir"] = (workspace.model_data_dir / source.name).absolute()
    return values


def _script_for(framework: Framework) -> Path | None:
    """Return Stoker's own script for models of a framework; None if there is none."""
    if framework == "torchserve":
        script: Path = require_extension("torchserve").ENTRY_SCRIPT
        return script
    return ENTRY_SCRIPT if framework == "mlflow" else None


def environment_of(deployment: Deployment) -> ModelEnvironment | None:
    """Read the file with the packages that a model requires; None without one."""
    if deployment.environment is None:
        return None
    # Imported here: they take memory, and most servers have no such model.
    from stoker.environments.check import ModelEnvironment
    from stoker.environments.files import read_environment

    return ModelEnvironment(
        read_environment(deployment.environment), deployment.environment_managed == "system"
    )


def _same_names(settings: ServerSettings, model: ModelSettings) -> dict[str, Any]:
    """Return the settings that a deployment has under the same name: the model's, else the server's."""
    values = {"max_body_bytes": settings.max_body_bytes}
    for source in (settings, model):
        for field in dataclasses.fields(source):
            value = getattr(source, field.name)
            if field.name in _OWN_NAMES and value is not None:
                values[field.name] = value
    return values


def _origin(registered: Registered) -> dict[str, str]:
    facts = {"registered": registered.created_at, "from": registered.source}
    return {
        **{name: value for name, value in facts.items() if value},
        **registered.properties,
        **registered.tags,
    }


def _with_example(model: ModelSettings, source: ModelSource, workspace: Workspace) -> ModelSettings:
    """Add the input example of a model of MLflow as the sample if the settings have none."""
    if source.framework == "torchserve":
        return _with_sample_beside(model, source)
    folder = folder_around(source.path)
    if folder is None or model.sample_input is not None:
        return model
    if any((folder / name).is_file() for name in SAMPLE_FILES):
        return model
    sample = sample_request(folder, arrays=source.framework != "mlflow")
    if sample is None:
        return model
    return dataclasses.replace(model, sample_input=write_sample(sample, workspace.create().run_dir))


def _with_sample_beside(model: ModelSettings, source: ModelSource) -> ModelSettings:
    """Add the sample that was registered beside an archive if the settings have none."""
    beside = (
        () if source.registered is None else (source.registered.files_dir / name for name in SAMPLE_FILES)
    )
    sample = next(filter(Path.is_file, beside), None)
    if sample is None or model.sample_input is not None:
        return model
    return dataclasses.replace(model, sample_input=sample)


def _model_dir(model: ModelSettings, source: ModelSource, workspace: Workspace, leases: ExitStack) -> Path:
    """Return the folder of a model's files: its setting's, that of registered models of a script, or its own."""
    if model.uses:
        used = [Repository(workspace.models_dir).resolve(reference) for reference in model.uses]
        for registered in used:
            leases.enter_context(registered.hold())
            registered.verify()
        return link_models(used, workspace.create_run_dir())
    if source.framework == "torchserve" and not source.path.is_dir():
        unpacked: Path = require_extension("torchserve").unpack_archive(
            source.path, source.fingerprint(), workspace.create().archives_dir, leases
        )
        return unpacked
    model_dir = model.model_dir or source.model_dir
    if not model_dir.is_dir():
        raise InvalidSettings(f"the model folder {model_dir} is not a directory")
    return model_dir


def _engine_cache(
    model: ModelSettings,
    source: ModelSource,
    framework: str,
    fingerprint: str,
    placement: Placement,
    workspace: Workspace,
) -> Path | None:
    """Return the folder of engines, fused graphs or compiled code of exactly these files; None if none are built."""
    may_be_fused = framework == "onnx" and model.optimize == "auto" and {*placement.devices} != {"cpu"}
    if model.provider != "tensorrt" and not model.compile and not may_be_fused:
        return None
    digest = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
    root = workspace if may_be_fused and model.provider != "tensorrt" else workspace.create()
    return root.engines_dir / f"{source.name}-{source.version}-{digest}"


def _threads(framework: str, model: ModelSettings, settings: ServerSettings, placement: Placement) -> int:
    """Return a replica's share of the cores, or fewer by the model's setting."""
    cores = usable_cores()
    if framework in ("script", "sklearn"):
        # Idle threads of their libraries may spin, or poll for work: frontends need a core of their own.
        cores -= settings.frontend_count
    share = max(1, cores // max(1, placement.cpu_replicas))
    return min(share, model.threads or share)


def _environment_folder(source: ModelSource) -> Path | None:
    """Return the folder to search for a file of packages: of the code, of MLflow, or of the registered version."""
    if source.framework == "torchserve":
        # The manifest of the archive names the file.
        return None
    if source.framework in ("script", "sklearn"):
        return source.path.parent
    return folder_around(source.path) if source.registered is None else source.registered.files_dir


def _acceleration(model: ModelSettings, name: str, framework: str) -> Acceleration:
    """Return the settings of a model for its use of a GPU."""
    acceleration = Acceleration(
        model.provider,
        "tf32" if model.precision == "auto" else model.precision,
        model.gpu_memory_mb,
        model.execution,
        model.xla,
        model.optimize,
        model.compile,
    )
    check_acceleration(name, framework, acceleration)
    return acceleration


def _declaration(model: ModelSettings, declaration: Declaration) -> Declaration:
    """Return the tensors of config.pbtxt; settings with rows of a batch overrule its lack of a batch axis."""
    overrules = declaration.batched is False and (model.max_batch_rows or model.batching == "rows")
    return msgspec.structs.replace(declaration, batched=None) if overrules else declaration


def _parity(model: ModelSettings, settings: ServerSettings) -> Parity:
    tolerance = model.parity_tolerance
    if model.sequence is not None:
        # Answers depend on earlier requests, so those of another version prove nothing.
        return Parity()
    return Parity(
        model.parity or settings.parity, settings.parity_tolerance if tolerance is None else tolerance
    )


def _collection(model: ModelSettings, settings: ServerSettings) -> CollectionSettings | None:
    """Return the setting of collection for a model: its own, else the server's."""
    collection = model.collect
    if collection is None and settings.collect:
        collection = CollectionSettings()
    if collection and collection.format == "parquet" and find_spec("pyarrow") is None:
        raise InvalidSettings(
            f"collect: the format parquet is written by pyarrow, which is not installed; {how_to_install('parquet')}"
        )
    return collection or None


def _image(model: ModelSettings, source: ModelSource) -> ImageInput | None:
    """Return the making of a model's input from images: of its setting, else of its registration."""
    registered = None if source.registered is None else source.registered.image
    if find_spec("PIL") is None:
        missing = f"images are decoded by Pillow, which is not installed; {how_to_install('images')}"
        if model.image is not None:
            raise InvalidSettings(f"{source.name}: {missing}")
        if registered is not None:
            logger.warning("%s takes no images, only numbers: %s", source.name, missing)
        return None
    return read_image_input(registered) if model.image is None and registered is not None else model.image
