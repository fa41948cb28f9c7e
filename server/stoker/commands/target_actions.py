"""`stoker targets attach`, `prepare` and `detach`: options follow from what the files of each type may say."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stoker.commands.run_output import found_workspace, note
from stoker.errors import InvalidSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["add_attach", "add_prepare", "detach"]

_HELP: Final[Mapping[str, str]] = {
    "address": "host name of the machine, or an alias of ~/.ssh/config",
    "cores": "cores that its runs share (default: all that it has)",
    "folder": "where everything of runs is there (default: ~/.stoker-runs)",
    "gpus": "GPUs that its runs share, as 0,1 (default: all that it has)",
    "host_key": "fingerprint of its host key, SHA256:…, or the key itself (default: ~/.ssh/known_hosts decides)",
    "key_file": "private key (default: those of the SSH agent and of ~/.ssh)",
    "port": "where its SSH server listens (default: 22)",
    "python": "interpreter there, from 3.6 up (default: python3)",
    "username": "who logs in there (default: who you are here)",
}


def add_attach(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    """Declare `attach TYPE NAME` with the options of each type.

    Args:
        parser: Of `attach`.
        common: What every command about runs has.
    """
    from stoker.targets.definitions import attachable, keys_of, secrets_of

    kinds = parser.add_subparsers(dest="kind", required=True, metavar="TYPE")
    for kind in attachable():
        one = kinds.add_parser(kind, parents=[common], help=f"one of type {kind}")
        one.add_argument("target", metavar="NAME", help="what it is to be called")
        for key in keys_of(kind):
            one.add_argument(
                f"--{key.replace('_', '-')}", dest=f"key_{key}", metavar="VALUE", help=_HELP.get(key)
            )
        for secret in secrets_of(kind):
            group = one.add_mutually_exclusive_group()
            group.add_argument(f"--ask-{secret}", action="store_true", help=f"ask for the {secret}")
            group.add_argument(
                f"--{secret}-file",
                type=Path,
                metavar="FILE",
                help=f"the {secret} is the first line of this file",
            )
        one.add_argument("--no-check", action="store_true", help="do not look whether it can be used")
        one.set_defaults(targets_run=_attach)


def _attach(args: argparse.Namespace) -> int:
    from stoker.targets.attaching import attach
    from stoker.targets.definitions import keys_of, read_value, secrets_of
    from stoker.targets.registry import engine_of

    given = {key: vars(args)[f"key_{key}"] for key in keys_of(args.kind)}
    content = {key: read_value(key, text) for key, text in given.items() if text is not None}
    if "key_file" in content:
        content["key_file"] = str(Path(content["key_file"]).expanduser().absolute())
    secrets = {name: text for name in secrets_of(args.kind) if (text := _secret(args, name)) is not None}
    engine = None if args.no_check else engine_of
    lines = attach(found_workspace(args), args.target, {"type": args.kind, **content}, secrets, engine)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"{args.target} is attached; stoker submit --target {args.target} SCRIPT\n")
    return 0


def _secret(args: argparse.Namespace, name: str) -> str | None:
    """A secret by its file or by asking for it: on a command line others would see it."""
    file: Path | None = vars(args)[f"{name}_file"]
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8").partition("\n")[0]
        except OSError as error:
            raise InvalidSettings(f"the {name} cannot be read from {file}: {error.strerror}") from error
    elif vars(args)[f"ask_{name}"]:
        if sys.stdin.isatty():
            from getpass import getpass

            text = getpass(f"{name} for {args.target}: ")
        else:
            text = sys.stdin.readline().rstrip("\n")
    else:
        return None
    if not text:
        raise InvalidSettings(f"the {name} is empty")
    return text


def add_prepare(parser: argparse.ArgumentParser) -> None:
    """Declare what `prepare` takes."""
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--environment", type=Path, metavar="FILE", help="a conda or requirements file")
    asked.add_argument("--config", type=Path, metavar="FILE", help="a file of settings that names one")
    parser.add_argument(
        "--as-of", default="", metavar="DATE", help="leave out packages that were uploaded later"
    )
    parser.set_defaults(targets_run=_prepare)


def _prepare(args: argparse.Namespace) -> int:
    import shutil
    from tempfile import TemporaryDirectory

    from stoker.environments.asked import AskedEnvironment
    from stoker.launch.configuration import read_configuration
    from stoker.targets.definitions import LOCAL, find_target
    from stoker.targets.engine import Building
    from stoker.targets.registry import engine_of

    workspace = found_workspace(args)
    target = find_target(workspace.targets_dir, args.target)
    settings = {} if args.config is None else read_configuration(args.config).get("environment", {})
    file = Path(args.environment or settings.get("file", ""))
    if not file.is_file():
        raise InvalidSettings(
            f"the environment file {file} does not exist" if file.name else "no file is named"
        )
    asked = AskedEnvironment(
        "exact", "", args.as_of or settings.get("as_of", ""), f"asked{file.suffix.lower()}"
    )
    with TemporaryDirectory(prefix="stoker-") as place:
        folder = Path(place)
        shutil.copyfile(file, folder / asked.file)
        if target.type == LOCAL:
            from stoker.environments.run_environment import prepared_for_run

            prepared_for_run(asked, folder, workspace.create().environments_dir, note)
        elif isinstance(engine := engine_of(target, workspace), Building):
            engine.build(asked, folder, note)
        else:
            raise InvalidSettings(
                f"{target.name} has environments built when a run is submitted, and not before"
            )
        sys.stdout.write((folder / "got.txt").read_text(encoding="utf-8"))
    return 0


def detach(args: argparse.Namespace) -> int:
    """Forget a target."""
    from stoker.targets.attaching import detach as forget

    forget(found_workspace(args), args.target)
    note(f"{args.target} is detached; what runs have left on it is still there")
    return 0
