"""`stoker models label --canary`: the weights by which requests go to versions with labels."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from stoker.errors import InvalidSettings
from stoker.models.labels import store_canary, stored_canary
from stoker.settings.takeover import Canary, read_sticky, read_weights
from stoker.versions import DEFAULT_LABEL

__all__ = ["add_canary_arguments", "shift_weights"]


def add_canary_arguments(label: argparse.ArgumentParser) -> None:
    """Declare the weights, and what sticks a caller to a version."""
    label.add_argument(
        "--canary",
        type=_weights,
        metavar="LABEL=WEIGHT,…",
        help="weights of labels, by which requests that name no version go to their versions; off for none",
    )
    label.add_argument(
        "--canary-by",
        type=_sticky,
        metavar="WHAT",
        help="what sticks a caller to a version: key, or the name of a header",
    )


def shift_weights(args: argparse.Namespace, base: Path, labels: Mapping[str, int]) -> None:
    """Set the weights of the labels, if some are given, and show those that there are."""
    if args.canary is not None:
        for label in args.canary:
            if label not in (*labels, DEFAULT_LABEL):
                raise InvalidSettings(
                    f"{args.name} has no label {label}; it has {', '.join(labels) or 'none'}"
                )
        store_canary(base, Canary(args.canary, args.canary_by or ""))
    elif args.canary_by:
        raise InvalidSettings(
            "--canary-by says how callers stick to the versions of --canary: give the weights too"
        )
    stored = stored_canary(base)
    if stored is not None:
        sys.stdout.write(f"canary  {stored}\n")


def _weights(text: str) -> dict[str, int]:
    try:
        return read_weights(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _sticky(text: str) -> str:
    try:
        return read_sticky(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
