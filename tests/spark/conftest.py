"""Fixtures of the tests of Spark: a cluster of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.spark.cluster import SparkCluster, started_cluster, why_not


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    if why_not():
        pytest.skip(why_not())
    with started_cluster(tmp_path_factory.mktemp("spark") / "cluster") as started:
        yield started
