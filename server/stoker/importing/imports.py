"""Imports a model: makes the ways it could run of its file, measures each, and registers those that agree."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from stoker.deployment import SAMPLE_FILES, kind_of_torch_file
from stoker.errors import LoadFailed, RepositoryError
from stoker.importing.sentence_transformers import MODULES, pooled_model
from stoker.models.frameworks import Detected, detect
from stoker.models.registered import Registered
from stoker.models.registered_files import copy_files, name_sample, source_files
from stoker.models.repository import Repository
from stoker.models.way_choice import choose_default, describe_place, objection
from stoker.models.way_measuring import REFERENCE, Bench, measure_way, record_reference
from stoker.models.ways import Way, WayResult, Ways
from stoker.settings.choices import WAY_NAMES, WayName
from stoker.system.child_orders import order_child
from stoker.system.durable import staging_folder
from stoker.system.extensions import require_extension
from stoker.system.wording import format_count

_CONVERTING: Final = "stoker.importing.conversions"
_ARCHIVE: Final = ".mar"
_KERAS: Final = (".keras", ".h5", ".hdf5")
_FURTHER: Final[Mapping[str, tuple[WayName, ...]]] = {
    "torch": ("onnx", "tensorrt", "aoti"),
    "onnx": ("tensorrt",),
    "tensorflow": ("onnx", "tensorrt"),
}
"""The ways that can be made of an original."""

_OPTIONS: Final = {
    r" \(sample_input\.npz or \.json beside it, or --sample-input\)": " by --sample FILE",
    r"set max_batch_rows: (\d+)": r"give --max-batch-rows \1",
    r"\bload_timeout_s\b": "--load-timeout-s",
    r"set device\b": "give --device",
    r"or trust it with allow_pickle: true.* loads it": "or register it, and serve it with allow_pickle: true",
}
"""Options of the command, by how messages of the server name the settings."""

Report = Callable[[str, int, int], None]
"""Is told what happens now, how many steps are done, and of how many."""


class ImportOrder(Struct, frozen=True):
    """An import to make.

    Attributes:
        path: A file of PyTorch or Keras, a SavedModel, an ONNX file or its folder, or an archive of TorchServe.
        sample: A request that the model answers.
        tried: The ways to try besides the original; None for all that can be made of it.
        device: A setting of one device, which the ways are measured on.
        limit_s: How long a conversion, and loading and measuring a way, may take.
    """

    name: str
    path: Path
    sample: Path | None
    tried: Sequence[WayName] | None
    device: str
    tolerance: float
    max_batch_rows: int
    limit_s: float


def import_model(order: ImportOrder, repository: Repository, now: datetime, report: Report) -> Registered:
    """Import a model as the next version of its name; returns that version, whose `ways` have what was measured.

    Raises:
        RepositoryError: The path holds no model that can be imported.
        LoadFailed: The original cannot be loaded, or answers nothing.
    """
    with staging_folder(repository.models_dir) as staging:
        try:
            return _import(order, repository, now, report, staging)
        except (LoadFailed, RepositoryError) as error:
            raise type(error)(_in_words_of_import(str(error), order, staging)) from error


def _import(
    order: ImportOrder, repository: Repository, now: datetime, report: Report, staging: Path
) -> Registered:
    folder = staging / "model"
    folder.mkdir(mode=0o700)
    bench = Bench(order.name, folder, order.device, order.tolerance, order.max_batch_rows, order.limit_s)
    report(f"reading {order.path.name}", 0, 1)
    with ExitStack() as leases:
        original, way = place_original(order, folder, model_file(order, staging, leases))
    tried = order.tried if order.tried is not None else _FURTHER[original]
    names = [original, *(name for name in WAY_NAMES if name in tried and name != original)]
    done = itertools.count()

    def begin_step(label: str) -> None:
        report(label, next(done), 1 + 2 * len(names))

    begin_step("running the original")
    recorded = record_reference(replace(bench, device="cpu"), way)
    ways: dict[str, Way] = {}
    results = []
    for name in names:
        begin_step(f"{name}: converting")
        made = way if name == original else _made(name, original, way, ways, bench, recorded["signature"])
        begin_step(f"{name}: measuring")
        if isinstance(made, WayResult):
            results.append(made)
            continue
        ways[name] = made
        results.append(measure_way(name, made, bench))
    results = [
        replace(one, problem=_in_words_of_import(one.problem, order, staging, original)) for one in results
    ]
    isolation = recorded["signature"].get("isolation") or {}
    batched = bool(isolation.get("batched"))
    default = choose_default(results, original, batched=batched)
    agreeing = {one.way for one in results if not objection(one, batched=batched)} | {original}
    chosen = Ways(
        original=original,
        default=default,
        place=describe_place(order.device),
        tolerance=order.tolerance,
        max_batch_rows=order.max_batch_rows,
        batched=batched,
        ways={name: one for name, one in ways.items() if name in agreeing},
        results=tuple(results),
    )
    _remove_unused(folder, chosen)
    entry = chosen.ways[default]
    return repository.register(
        order.name,
        folder,
        now=now,
        detected=Detected(entry.framework, folder / entry.entry),
        source=order.path.resolve().name,
        signature=recorded["signature"],
        ways=chosen,
    )


def _in_words_of_import(text: str, order: ImportOrder, staging: Path, original: str = "") -> str:
    """Name the user's files, and the options of the command, in a message of what loads and converts models.

    Args:
        original: The way whose file is the user's; empty before others are made.
    """
    for path in sorted(staging.rglob("*"), key=lambda each: len(each.parts), reverse=True):
        if str(path) in text:
            text = text.replace(str(path), _users_name(path.relative_to(staging), order, original))
    for setting, option in _OPTIONS.items():
        text = re.sub(setting, option, text)
    return text


def _users_name(place: Path, order: ImportOrder, original: str) -> str:
    """The user's name of a file or folder of the import."""
    top, *below = place.parts
    if top == "model" and below:
        if below[0] in SAMPLE_FILES:
            return str(order.sample)
        if original and below[0] in WAY_NAMES and below[0] != original:
            return f"the file that was made for {below[0]}"
    return str(order.path)


def place_original(order: ImportOrder, folder: Path, path: Path) -> tuple[WayName, Way]:
    """Copy the original, and the sample, to where the files of the version are made.

    Args:
        path: The model; see `model_file`.

    Returns:
        The name of its way, and the way.

    Raises:
        RepositoryError: It is nothing that can be imported.
    """
    if order.sample is not None:
        if not order.sample.is_file():
            raise RepositoryError(f"--sample: {order.sample} is no file")
        (folder / name_sample(order.sample)).write_bytes(order.sample.read_bytes())
    detected = detect(path)
    name, framework = _way_of(detected)
    root = path if path.is_dir() else detected.path if detected.framework == "tensorflow" else path
    copy_files(source_files(root), folder / name)
    inside = detected.path.relative_to(root) if root.is_dir() else Path(root.name)
    return name, Way(framework, (Path(name) / inside).as_posix())


def model_file(order: ImportOrder, staging: Path, leases: ExitStack) -> Path:
    """Return what to import of a path.

    What Keras has saved becomes a SavedModel, an archive of TorchServe the model in it, a folder of
    sentence-transformers a model with its pooling; other files are as they are.

    Args:
        staging: A folder for what is made of it.
        leases: Receives what keeps that.
    """
    if not order.path.exists():
        raise RepositoryError(f"{order.path} does not exist")
    if (order.path / MODULES).is_file():
        return pooled_model(order.path, staging / "pooled")
    if order.path.suffix.lower() == _ARCHIVE:
        return _archived_model(order.path, staging, leases)
    if order.path.suffix.lower() not in _KERAS:
        return order.path
    target = staging / "saved_model"
    convert = {"source": str(order.path.absolute()), "target": str(target), "to": "tensorflow"}
    order_child(_CONVERTING, convert, order.limit_s, order.path.name, "saved as a SavedModel")
    return target


def _archived_model(path: Path, staging: Path, leases: ExitStack) -> Path:
    """Unpack an archive of TorchServe, and return its model's file; its handler is not imported."""
    torchserve = require_extension("torchserve")
    manifest = torchserve.read_archive_manifest(path)
    if manifest.model_file or not manifest.serialized_file:
        raise RepositoryError(
            f"{path} holds no program, but code that makes the model: export that by torch.export.save, or serve "
            f"{path.name}"
        )
    folder: Path = torchserve.unpack_archive(path, "", staging / "archives", leases)
    return folder / str(manifest.serialized_file)


def _way_of(detected: Detected) -> tuple[WayName, Any]:
    path = detected.path
    if detected.framework in ("onnx", "tensorflow"):
        return detected.framework, detected.framework
    if detected.framework == "torch":
        kind = kind_of_torch_file(path)
        if kind == "weights":
            raise RepositoryError(
                f"{path} holds weights, and no program: save the model by torch.export.save, or register it and name "
                "its class with model_class"
            )
        if kind == "aotinductor":
            raise RepositoryError(
                f"{path} is an AOTInductor package, whose compiled code would run: import the program that it was "
                "compiled from, or register the package and serve it with allow_pickle: true"
            )
        return "torch", "torch"
    raise RepositoryError(
        f"{path} is a model of the framework {detected.framework}; imported are those of PyTorch, ONNX and "
        "TensorFlow: register it"
    )


def _made(
    name: WayName,
    original: str,
    source: Way,
    ways: Mapping[str, Way],
    bench: Bench,
    signature: Mapping[str, Any],
) -> Way | WayResult:
    """Make the file of a way; a result with the problem where nothing makes it."""
    if name not in _FURTHER[original]:
        return WayResult(name, problem=f"nothing makes {name} of a model of {original}")
    if name == "tensorrt":
        if describe_place(bench.device).startswith("cpu"):
            return WayResult(name, problem="TensorRT needs a GPU")
        onnx = ways.get("onnx") or _made("onnx", original, source, ways, bench, signature)
        return replace(onnx, provider="tensorrt") if isinstance(onnx, Way) else replace(onnx, way=name)
    suffix = {"onnx": ".onnx", "aoti": ".pt2"}[name]
    target = bench.folder / name / f"model{suffix}"
    target.parent.mkdir(mode=0o700, exist_ok=True)
    convert = {
        "framework": source.framework,
        "source": str(bench.folder / source.entry),
        "target": str(target),
        "to": name,
        "device": bench.device,
        "signature": signature,
        "reference": str(bench.folder / REFERENCE),
    }
    try:
        order_child(_CONVERTING, convert, bench.limit_s, bench.name, f"converted to {name}")
    except LoadFailed as error:
        return WayResult(name, problem=" ".join(str(error).split()))
    framework: Any = "torch" if name == "aoti" else "onnx"
    return Way(framework, target.relative_to(bench.folder).as_posix())


def _remove_unused(folder: Path, ways: Ways) -> None:
    """Remove what conversions have written and no way uses."""
    from stoker_base.trees import remove_tree

    used = {Path(way.entry).parts[0] for way in ways.ways.values()}
    for name in WAY_NAMES:
        if name not in used and (folder / name).exists():
            remove_tree(folder / name)


def rows_of_table(ways: Ways) -> list[tuple[str, ...]]:
    """Return what was measured of each way, as the rows of a table with a head."""
    head = ("WAY", "DIFFERENCE", "FLIPS", "ROWS", "1 ROW", "BEST BATCH", "MEMORY", "LOAD", "")
    rows: list[tuple[str, ...]] = [head]
    for one in ways.results:
        why = objection(one, batched=ways.batched)
        if one.problem:
            rows.append((one.way, *["-"] * 7, one.problem))
            continue
        difference = "-" if one.difference is None else f"{one.difference:.2g}"
        remark = why or ("default" if one.way == ways.default else "")
        if one.remarks:
            remark += f"{'; ' if remark else ''}differs on {', '.join(one.remarks)}"
        rows.append(
            (
                one.way,
                difference,
                str(one.flips),
                "isolated" if one.batched else "mixed",
                f"{one.one_row_ms:.3g} ms",
                f"{format_count(one.best_rows, 'row')} {one.best_ms:.3g} ms",
                f"{one.memory_bytes / 1e6:.0f} MB",
                f"{one.load_s:.1f} s",
                remark,
            )
        )
    return rows
