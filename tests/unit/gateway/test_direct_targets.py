"""The request targets and heads of the fast path."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.puppets import metric_memory, puppet_service

from stoker.gateway.direct_targets import PlainHead
from stoker.gateway.gateway import Gateway
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.scoring.service import Service
from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.metrics.memory import MetricMemory
from stoker.settings.versions import VersionStatus


@pytest.fixture
def memory() -> MetricMemory:
    """Counters that nobody has counted yet."""
    return metric_memory()


def service(memory: MetricMemory, version: str, name: str = "digits", slot: int = 0) -> Service:
    """A service that takes everybody's requests, and is joined to nothing."""
    return puppet_service(name, memory, slot=slot, version=version)


def test_route_to_another_version_replaces_the_targets_and_forgets_heads(memory: MetricMemory) -> None:
    """The cached heads lead to services of before."""
    third, seventh = service(memory, "3"), service(memory, "7")
    gateway = Gateway(ModelDirectory({"digits": third}), memory)
    for heads in (gateway.targets.heads, gateway.targets.distant_heads):
        gateway.targets.cache_head(heads, b"POST /score", PlainHead(third, b"", 1, None, closes=False))
    gateway.route("digits", ServedModel({"7": ServedVersion(VersionStatus(1, "AVAILABLE"), seventh)}, "7"))
    assert gateway.targets.heads == gateway.targets.distant_heads == {}
    assert gateway.targets.scoring == {b"/score": seventh, b"/api/v1/service/digits/score": seventh}
    assert gateway.targets.infer == {
        b"/v2/models/digits/infer": seventh,
        b"/v2/models/digits/versions/7/infer": seventh,
    }
    assert gateway.targets.others == {
        b"/predictions/digits": (seventh, "predictions"),
        b"/predictions/digits/7": (seventh, "predictions"),
        b"/v1/embeddings": (seventh, "embeddings"),
        b"/v1/rerank": (seventh, "rerank"),
        b"/api/v1/service/digits/v1/embeddings": (seventh, "embeddings"),
        b"/api/v1/service/digits/v1/rerank": (seventh, "rerank"),
    }
    gateway.route("digits", ServedModel({"7": ServedVersion(VersionStatus(1, "END"))}, None))
    assert (gateway.targets.scoring, gateway.targets.infer, gateway.targets.others) == ({}, {}, {})
    gateway.check_ready()


def test_a_model_that_is_loaded_later_leaves_the_short_path_to_the_first(memory: MetricMemory) -> None:
    """`/score` belongs to the model that the server was started with."""
    digits, letters = service(memory, "1"), service(memory, "1", "letters")
    gateway = Gateway(ModelDirectory({"digits": digits}), memory)
    gateway.route("letters", ServedModel.of(letters, 1))
    assert gateway.targets.scoring[b"/score"] is digits
    assert gateway.targets.scoring[b"/api/v1/service/letters/score"] is letters


def test_cache_head_beyond_the_limit_starts_anew(memory: MetricMemory) -> None:
    """Clients that never repeat a head cannot fill the memory."""
    targets = Gateway(ModelDirectory({}), memory).targets
    meaning = PlainHead(service(memory, "1"), b"", 1, None, closes=False)
    for number in range(5000):
        targets.cache_head(targets.heads, b"%d" % number, meaning)
    assert len(targets.heads) == 5000 - 4096


def test_heads_of_distant_callers_are_apart_with_local_regions(memory: MetricMemory) -> None:
    """The same head means shared memory for one caller, and a refusal for the other."""
    targets = Gateway(ModelDirectory({}), memory).targets
    regions = SimpleNamespace(serves=lambda address: address == "127.0.0.1")
    assert targets.heads_of("10.0.0.1", None) is targets.heads
    assert targets.heads_of("127.0.0.1", regions) is targets.heads  # type: ignore[arg-type]
    assert targets.heads_of("10.0.0.1", regions) is targets.distant_heads  # type: ignore[arg-type]
