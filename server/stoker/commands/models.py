"""`stoker models`: register, list, show, label and delete models, load and unload them in a running server."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from stoker.commands.import_model import add_import_arguments, run_import
from stoker.commands.running_server import add_server_arguments, ask_admin
from stoker.commands.terminal import (
    add_json_argument,
    add_workspace_argument,
    note,
    print_json,
    size_text,
    table,
)
from stoker.errors import InvalidSettings, LoadFailed, LoadTimeout, OperatorError
from stoker.models.frameworks import FRAMEWORKS, Detected, detect
from stoker.models.labels import change_labels, stored_labels
from stoker.settings.image_input import ImageInput, image_argument, read_image_input
from stoker.settings.readers import number_of
from stoker.settings.versions import VersionPolicy, check_named, read_labels
from stoker.system.extensions import find_extension, require_extension

if TYPE_CHECKING:
    from collections.abc import Callable

    from tqdm import tqdm

    from stoker.models.registered import Registered
    from stoker.models.repository import Repository
    from stoker.models.ways import Ways
from stoker.commands.model_events import add_events_arguments, print_events
from stoker.commands.model_weights import add_canary_arguments, shift_weights

_PROGRESS_FROM_BYTES = 50_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    common = argparse.ArgumentParser(add_help=False)
    add_workspace_argument(common)
    as_json = argparse.ArgumentParser(add_help=False)
    add_json_argument(as_json)
    actions = parser.add_subparsers(dest="models_action", required=True, metavar="ACTION")

    register = actions.add_parser(
        "register", parents=[common], help="copy a model into the workspace as its next version"
    )
    register.add_argument("name", metavar="NAME", help="name of the model")
    register.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        nargs="?",
        help="a model file or folder, or its address (s3://bucket/model.onnx); with --run its name among the run's "
        "files (default: the model's name)",
    )
    register.add_argument(
        "--run", dest="from_run", metavar="RUN", help="the training run that has written it"
    )
    register.add_argument(
        "--framework", choices=FRAMEWORKS, help="what PATH holds, where it could be several things"
    )
    register.add_argument("--description", default="", metavar="TEXT", help="a description")
    register.add_argument(
        "--tag", action="append", default=[], type=_tag, metavar="KEY=VALUE", help="a label; can be repeated"
    )
    register.add_argument(
        "--image",
        type=image_argument,
        metavar="SPEC",
        help="how images become its input, for instance size=28x28,channels=1,scale=255,invert",
    )
    register.add_argument(
        "--sample-input",
        type=Path,
        metavar="FILE",
        help="a request that the model is known to answer: JSON, .npy, .npz, or an image",
    )
    register.add_argument(
        "--load-timeout-s",
        type=number_of(float, 1, 86_400),
        metavar="S",
        help="how long loading it to read its signature may take, in seconds (default: STOKER_LOAD_TIMEOUT_S or 600)",
    )
    register.set_defaults(models_run=_register)

    importing = actions.add_parser(
        "import",
        parents=[common, as_json],
        help="try the ways to run a model, prove that they answer alike, and register those that do",
    )
    add_import_arguments(importing)
    importing.set_defaults(models_run=_import)

    push = actions.add_parser("push", parents=[common], help="copy a version to an object store")
    push.add_argument("reference", metavar="NAME[:VERSION]", help="the model; its latest version by default")
    push.add_argument("address", metavar="ADDRESS", help="a folder, such as s3://bucket/models/digits/3")
    push.set_defaults(models_run=_push)

    pull = actions.add_parser("pull", parents=[common], help="register a version that was pushed, verified")
    pull.add_argument("address", metavar="ADDRESS", help="the folder, as push was given it")
    pull.add_argument("--name", metavar="NAME", help="name of the model (default: as it was pushed)")
    pull.set_defaults(models_run=_pull)

    listing = actions.add_parser("list", parents=[common, as_json], help="list all versions of all models")
    listing.set_defaults(models_run=_list)

    show = actions.add_parser("show", parents=[common, as_json], help="show one version")
    show.add_argument("reference", metavar="NAME[:VERSION]", help="the model; its latest version by default")
    show.set_defaults(models_run=_show)

    delete = actions.add_parser(
        "delete", parents=[common], help="delete one version; its number is not reused"
    )
    delete.add_argument("reference", metavar="NAME:VERSION", help="the version")
    delete.add_argument("--force", action="store_true", help="delete it even while it is being served")
    delete.set_defaults(models_run=_delete)

    label = actions.add_parser(
        "label",
        parents=[common],
        help="show or move the labels of a model's versions, in running servers too",
    )
    label.add_argument("name", metavar="NAME", help="the model")
    label.add_argument(
        "labels",
        metavar="LABEL=VERSION",
        nargs="*",
        help="what a label means from now on; 'default' is the version that is meant where none is named",
    )
    label.add_argument(
        "--remove", action="append", default=[], metavar="LABEL", help="remove a label; can be repeated"
    )
    add_canary_arguments(label)
    label.set_defaults(models_run=_label)

    server = argparse.ArgumentParser(add_help=False)
    server.add_argument("reference", metavar="NAME[:VERSION]", help="the model, or one version of it")
    add_server_arguments(server)
    for action, help_text in (
        ("load", "have a running server load a model, or what has changed of it"),
        ("unload", "have a running server unload a model"),
    ):
        parser_of_action = actions.add_parser(action, parents=[common, server], help=help_text)
        parser_of_action.set_defaults(models_run=_ask_server)

    events = actions.add_parser(
        "events", parents=[common, as_json], help="show what has happened to versions in a running server"
    )
    add_events_arguments(events)
    events.set_defaults(models_run=print_events)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand."""
    exit_code: int = args.models_run(args)
    return exit_code


def _tag(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _repository(args: argparse.Namespace, *, create: bool = False) -> Repository:
    from stoker.models.repository import Repository
    from stoker.settings.workspace import Workspace

    workspace = Workspace.find(args.workspace)
    return Repository((workspace.create() if create else workspace).models_dir)


def _register(args: argparse.Namespace) -> int:
    from stoker.settings.names import checked_name

    checked_name(args.name)
    origin = _resolve_run_file(args)
    with ExitStack() as cleanup:
        args.path = _fetch(args, args.path, cleanup)
    detected = detect(args.path, args.framework)

    def check(signature: dict[str, Any]) -> None:
        if args.image is not None:
            _check_image(args.image, signature)
        if args.sample_input is not None:
            _check_sample(args, signature)

    def read_signature(copy: Detected, folder: Path) -> dict[str, Any] | None:
        from stoker.device.signature_probe import learn_signature

        if sys.stderr.isatty() and detected.framework in {"onnx", "tensorflow"}:
            note(f"Loading {detected.path} on the CPU to read its signature …")
        try:
            return learn_signature(
                args.name, args.path, detected, copy, folder, note, check, args.image, args.load_timeout_s
            )
        except LoadTimeout:
            raise
        except LoadFailed as error:
            raise LoadFailed(
                f"{str(error).rstrip('.')}; if an entry script loads it, register it with --framework files"
            ) from None

    with ExitStack() as cleanup:
        registered = _repository(args, create=True).register(
            args.name,
            args.path,
            now=datetime.now(UTC),
            framework=detected.framework,
            description=args.description,
            tags=dict(args.tag),
            properties=origin,
            read_signature=read_signature,
            image=None if args.image is None else args.image.to_json(),
            sample=args.sample_input,
            progress=_progress(cleanup, "copying"),
        )
    sys.stdout.write(f"{registered.reference}\n")
    return 0


def _fetch(args: argparse.Namespace, path: Path, cleanup: ExitStack) -> Path:
    from stoker.models.fetching import fetch_path
    from stoker.settings.workspace import Workspace

    place, mirror = fetch_path(path, Workspace.find(args.workspace), note, _progress(cleanup, "fetching"))
    if mirror is not None:
        cleanup.callback(os.close, mirror.hold())
    return place


def _import(args: argparse.Namespace) -> int:
    with ExitStack() as cleanup:
        args.path = _fetch(args, args.path, cleanup)
        return run_import(args, _repository(args, create=True))


def _address(text: str) -> str:
    from stoker.settings.names import read_address

    address = read_address(text)
    if address is None:
        path = Path(text).absolute()
        example = path.as_uri() if path.exists() else "s3://bucket/models/digits/3"
        scheme, mark, _ = text.partition("://")
        shown = f"{scheme}://…" if mark else text  # the rest may have a password
        raise InvalidSettings(f"{shown} is no address; write for instance {example}")
    return address


def _push(args: argparse.Namespace) -> int:
    """Send the files of a version, and its manifest as the last one: a version with a manifest is whole."""
    from stoker.models.registered import FILES_FOLDER, MANIFEST
    from stoker.models.remote_stores import shown_address
    from stoker.models.remote_writing import send

    address = _address(args.address)
    registered = _repository(args).resolve(args.reference)
    with registered.hold(), ExitStack() as cleanup:
        registered.verify()
        files = {f"{FILES_FOLDER}/{name}": registered.files_dir / name for name in registered.files}
        files[MANIFEST] = registered.folder / MANIFEST
        send(files, address, progress=_progress(cleanup, "sending"))
    sys.stdout.write(f"{shown_address(address)}\n")
    return 0


def _pull(args: argparse.Namespace) -> int:
    from stoker.models.registered import find_version
    from stoker.models.remote_stores import shown_address

    with ExitStack() as cleanup:
        address = _address(args.address)
        folder = _fetch(args, Path(address), cleanup)
        pushed = find_version(folder)
        if pushed is None:
            raise InvalidSettings(
                f"{shown_address(address)} has no version that 'stoker models push' has sent; "
                "register other models with 'stoker models register NAME ADDRESS'"
            )
        pushed.verify()
        registered = _repository(args, create=True).register_again(
            pushed,
            args.name or pushed.name,
            now=datetime.now(UTC),
            progress=_progress(cleanup, "copying"),
        )
    sys.stdout.write(f"{registered.reference}\n")
    return 0


def _resolve_run_file(args: argparse.Namespace) -> dict[str, str]:
    """With `--run`, set the path to the run's file; return the properties that say where the version came from."""
    from stoker.settings.workspace import Workspace

    workspace = Workspace.find(args.workspace)
    if args.from_run is not None:
        args.path, origin = require_extension("runs").file_of_run(
            workspace, args.from_run, args.path or Path(args.name)
        )
        return dict(origin)
    if args.path is None:
        raise InvalidSettings(
            "name the model file or folder, or with --run the training run that has written it"
        )
    runs = find_extension("runs")
    return {} if runs is None else dict(runs.origin_of_copy(workspace, args.path))


def _check_image(image: ImageInput, signature: dict[str, Any]) -> None:
    """Raise an error if an image input contradicts the signature."""
    from stoker.tensors import Signature
    from stoker.wire.images import image_layout

    image_layout(image, Signature.from_json(signature))


def _check_sample(args: argparse.Namespace, signature: dict[str, Any]) -> None:
    """Raise an error if a sample does not fit the signature."""
    from stoker.samples.sample_files import read_sample
    from stoker.tensors import Signature

    tensors = Signature.from_json(signature).model_tensors
    if tensors is not None:
        read_sample(args.sample_input, tensors.inputs, model=args.name, image=args.image)


def _progress(cleanup: ExitStack, verb: str) -> Callable[[int, int], None] | None:
    """A progress bar that appears with the first report of a long copy and goes with `cleanup`."""
    if not sys.stderr.isatty():
        return None
    bar: tqdm[Any] | None = None

    def report(copied_bytes: int, total_bytes: int) -> None:
        nonlocal bar
        if total_bytes < _PROGRESS_FROM_BYTES:
            return
        if bar is None:
            from tqdm import tqdm

            bar = cleanup.enter_context(
                tqdm(total=total_bytes, unit="B", unit_scale=True, desc=verb, leave=False)
            )
        bar.update(copied_bytes - bar.n)

    return report


def _list(args: argparse.Namespace) -> int:
    """List readable versions, then report unreadable ones; the first of their errors sets the exit code."""
    repository = _repository(args)
    broken: dict[tuple[str, int], OperatorError] = {}
    models = repository.list(broken=broken)
    if args.json:
        print_json([model.to_json() for model in models])
    elif models:
        header = ("MODEL", "FRAMEWORK", "SIZE", "REGISTERED", "DESCRIPTION")
        sys.stdout.write(table([header, *map(_row, models)]))
    elif not broken:
        note(f"No model is registered in {repository.models_dir}; see: stoker models register --help")
    for error in broken.values():
        note(f"stoker models: {error}")
    return max((error.exit_code for error in broken.values()), default=0)


def _row(model: Registered) -> tuple[str, ...]:
    description = " ".join(model.description.split())
    return model.reference, model.framework, size_text(model.size_bytes), model.created_at, description


def _show(args: argparse.Namespace) -> int:
    model = _repository(args).resolve(args.reference)
    if args.json:
        print_json(model.to_json())
        return 0
    facts = [
        ("model", model.reference),
        ("framework", model.framework),
        ("signature", _signature_text(model)),
        ("batching", _batching_text(model)),
        *([] if model.ways is None else [("ways", _ways_text(model.ways))]),
        ("images", _image_text(model)),
        ("description", model.description or "-"),
        ("tags", ", ".join(f"{key}={value}" for key, value in sorted(model.tags.items())) or "-"),
        ("registered", f"{model.created_at} from {model.source}"),
        *((f"from {name}", value) for name, value in sorted(model.properties.items())),
        ("path", str(model.path)),
    ]
    sys.stdout.write(table(facts))
    sys.stdout.write("\n")
    files = [
        (str(path), size_text(record.size_bytes), record.sha256)
        for path, record in sorted(model.files.items())
    ]
    sys.stdout.write(table([("FILE", "SIZE", "SHA-256"), *files]))
    return 0


def _signature_text(model: Registered) -> str:
    if model.signature is None:
        return "known when it is loaded"
    from stoker.tensors import Signature

    return str(Signature.from_json(dict(model.signature)))


def _batching_text(model: Registered) -> str:
    from stoker.tensors import Signature

    signature = None if model.signature is None else Signature.from_json(dict(model.signature))
    if signature is None or signature.isolation is None:
        return "known when it is loaded"
    return str(signature.isolation)


def _ways_text(ways: Ways) -> str:
    return f"{', '.join(ways.ways)}; {ways.default} is the fastest on {ways.place}"


def _image_text(model: Registered) -> str:
    if model.image is None:
        return "-"
    return f"{read_image_input(model.image)} ({json.dumps(model.image)})"


def _delete(args: argparse.Namespace) -> int:
    from stoker.settings.names import parse_reference

    name, version = parse_reference(args.reference)
    if version is None:
        raise InvalidSettings(f"say which version to delete: {name}:VERSION (stoker models list shows them)")
    labels = stored_labels(_repository(args).models_dir / name)
    labelled = [label for label, labelled_version in labels.items() if labelled_version == version]
    if labelled and not args.force:
        raise InvalidSettings(
            f"{name}:{version} has the label {labelled[0]}; move it first (stoker models label {name} "
            f"{labelled[0]}=VERSION), or delete the version with --force"
        )
    _repository(args).delete(name, version, force=args.force)
    sys.stdout.write(f"{name}:{version} is deleted\n")
    return 0


def _label(args: argparse.Namespace) -> int:
    repository = _repository(args)
    versions = repository.versions(args.name) or [repository.get(args.name).version]
    pairs = dict(text.partition("=")[::2] for text in args.labels)
    try:
        moved = read_labels(pairs)
    except ValueError as error:
        raise InvalidSettings(f"labels {error}, such as: stoker models label {args.name} stable=3") from None
    for version in moved.values():
        check_named(args.name, VersionPolicy(None, (version,)), versions)
    base = repository.models_dir / args.name
    there = stored_labels(base)
    for label in args.remove:
        if label not in there:
            raise InvalidSettings(f"{args.name} has no label {label}; it has {', '.join(there) or 'none'}")
    labels = change_labels(base, moved, args.remove) if moved or args.remove else there
    sys.stdout.write(table([(label, f"{args.name}:{version}") for label, version in sorted(labels.items())]))
    if not labels:
        note(f"{args.name} has no labels")
    shift_weights(args, base, labels)
    return 0


def _ask_server(args: argparse.Namespace) -> int:
    """Load or unload by the model repository API."""
    from stoker.settings.names import checked_service, parse_reference

    name, version = parse_reference(args.reference, checked_service)
    path = f"/v2/repository/models/{quote(name)}"
    if version is not None:
        path += f"/versions/{version}"
    ask_admin(args, f"{path}/{args.models_action}")
    sys.stdout.write(f"{args.reference} is {args.models_action}ed\n")
    return 0
