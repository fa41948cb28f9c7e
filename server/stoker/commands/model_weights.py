"""`stoker models label --canary`: the weights by which requests go to versions with labels."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from stoker.errors import InvalidSettings
from stoker.models.labels import store_canary, stored_canary
from stoker.settings.takeover import Canary, read_percents, read_sticky, read_weights
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
        "--shadow",
        type=_percents,
        metavar="LABEL=PERCENT,…",
        help="so many of a hundred rows run on the versions of labels too, and go nowhere; off for none",
    )
    label.add_argument(
        "--canary-by",
        type=_sticky,
        metavar="WHAT",
        help="what sticks a caller to a version: key, or the name of a header",
    )


def shift_weights(args: argparse.Namespace, base: Path, labels: Mapping[str, int]) -> None:
    """Set the weights of the labels and the copies for them, if some are given, and show those that there are."""
    if args.canary_by and args.canary is None:
        raise InvalidSettings(
            "--canary-by says how callers stick to the versions of --canary: give the weights too"
        )
    canary = stored_canary(base) or Canary()
    if args.canary is not None:
        canary = replace(canary, weights=_known(args, args.canary, labels), by=args.canary_by or "")
    if args.shadow is not None:
        canary = replace(canary, shadow=_known(args, args.shadow, labels))
    if args.canary is not None or args.shadow is not None:
        store_canary(base, canary)
    if canary != Canary():
        sys.stdout.write(f"canary  {canary}\n")


def _known(
    args: argparse.Namespace, by_label: Mapping[str, int], labels: Mapping[str, int]
) -> Mapping[str, int]:
    """What is said of labels, if there are all of them."""
    for label in by_label:
        if label not in (*labels, DEFAULT_LABEL):
            raise InvalidSettings(f"{args.name} has no label {label}; it has {', '.join(labels) or 'none'}")
    return by_label


def _weights(text: str) -> dict[str, int]:
    try:
        return read_weights(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _percents(text: str) -> dict[str, int]:
    try:
        return read_percents(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _sticky(text: str) -> str:
    try:
        return read_sticky(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
