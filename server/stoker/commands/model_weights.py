"""`stoker models label --canary`: weights of versions with labels."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from stoker.commands.terminal import (
    option_of,
)
from stoker.errors import InvalidSettings
from stoker.models.labels import store_canary, stored_canary
from stoker.settings.traffic import Canary, read_percents, read_sticky, read_weights
from stoker.settings.versions import DEFAULT_LABEL


def add_canary_arguments(label: argparse.ArgumentParser) -> None:
    """Declare the options of weights and of callers that stay on one version."""
    label.add_argument(
        "--canary",
        type=option_of(read_weights),
        metavar="LABEL=WEIGHT,…",
        help="weights of labels, by which requests that name no version go to their versions; off for none",
    )
    label.add_argument(
        "--shadow",
        type=option_of(read_percents),
        metavar="LABEL=PERCENT,…",
        help="so many of a hundred rows run on the versions of labels too, and go nowhere; off for none",
    )
    label.add_argument(
        "--canary-by",
        type=option_of(read_sticky),
        metavar="WHAT",
        help="what sticks a caller to a version: key, or the name of a header",
    )


def shift_weights(args: argparse.Namespace, base: Path, labels: Mapping[str, int]) -> None:
    """Set the given weights and shadow percentages of labels, and print the current ones."""
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
    """Return values by label, if all labels exist."""
    for label in by_label:
        if label not in (*labels, DEFAULT_LABEL):
            raise InvalidSettings(f"{args.name} has no label {label}; it has {', '.join(labels) or 'none'}")
    return by_label
