"""`stoker ray`: arguments refused before a cluster is contacted."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from stoker.errors import InvalidSettings
from stoker_cluster.commands import ray


def test_tls_is_refused_without_a_use(tmp_path: Path) -> None:
    """The actors ask their servers by plain HTTP, and would wait for ever for one that takes none."""
    parser = argparse.ArgumentParser()
    ray.add_arguments(parser)
    args = parser.parse_args(
        ["up", "m.onnx", "--workspace", str(tmp_path), "--option=--tls-cert", "--option=tls.crt"]
    )
    with pytest.raises(
        InvalidSettings, match="--tls-cert: servers on a cluster of Ray are asked by plain HTTP"
    ):
        ray.run(args)
