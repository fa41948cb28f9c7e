"""`model-config.yaml`: the settings of the server that follow from it."""

from __future__ import annotations

from typing import Any

import pytest

from stoker_torchserve.model_config import parse_model_config, settings_of


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("batchSize: 8", {"max_batch_rows": 8, "batching": "rows"}),
        ("batchSize: 1", {"max_batch_rows": 1, "batching": "auto"}),
        ("maxBatchDelay: 50", {"max_delay_ms": 50.0}),
        ("responseTimeout: 2", {"timeout_ms": 2000}),
        ("startupTimeout: 90", {"load_timeout_s": 90.0}),
        ("minWorkers: 2\nmaxWorkers: 2", {"replicas": 2}),
        ("minWorkers: 0", {"replicas": None}),
        ("deviceType: cpu", {"device": ("cpu",)}),
        ("deviceType: gpu", {"device": ("auto",)}),
        ("deviceType: gpu\ndeviceIds: [0, 2]", {"device": ("cuda:0", "cuda:2")}),
        ("deviceIds: [0, 2]\ndeviceType: gpu", {"device": ("cuda:0", "cuda:2")}),
        ("jobQueueSize: 20", {"max_concurrent_requests": 20, "max_queue_wait_ms": 0}),
    ],
)
def test_supported_key_becomes_a_setting(text: str, settings: dict[str, Any]) -> None:
    """A key becomes the server's setting in its unit, without a note."""
    found, notes = settings_of(parse_model_config(text.encode()), "c.yaml")
    assert {name: getattr(found, name) for name in settings} == settings
    assert notes == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parallelType: tp", "parallelType is not offered"),
        ("torchrun: {nproc-per-node: 4}", "torchrun is not offered"),
        ("continuousBatching: true", "continuousBatching is not offered"),
        ("batchSize: 0", "batchSize: 0 is no whole number from 1 up"),
        ("batchSize: many", "batchSize: 'many' is no whole number"),
        ("minWorkers: true", "minWorkers: True is no whole number"),
        ("deviceType: neuron", "'neuron' is not offered; it is cpu or gpu"),
        ("deviceIds: 0", "is no list of GPUs"),
        ("deviceType: cpu\ndeviceIds: [1]", "leave one out"),
    ],
)
def test_unsupported_key_is_refused_by_name(text: str, message: str) -> None:
    """The error names the file, the key and the value."""
    with pytest.raises(ValueError, match=message) as refused:
        settings_of(parse_model_config(text.encode()), "c.yaml")
    assert "c.yaml" in str(refused.value)


def test_key_without_effect_on_answers_is_noted() -> None:
    """Keys that change no answer are noted; keys of the handler are not."""
    text = b"maxRetryTimeoutInSec: 5\nmaxWorkers: 4\nparallelLevel: 0\nhandler: {profile: true}\nmine: 3\n"
    _, notes = settings_of(parse_model_config(text), "c.yaml")
    assert [note.split(" is ")[0] for note in notes] == ["c.yaml: maxRetryTimeoutInSec", "c.yaml: maxWorkers"]


@pytest.mark.parametrize("content", [b"- a", b"{", b"\xff", b"1: 2", b"a: !!python/object:os.system {}"])
def test_content_that_is_no_configuration_is_refused(content: bytes) -> None:
    """Other content is refused, and no tag in it runs code."""
    with pytest.raises(ValueError, match=r"it is not YAML|needs settings by name"):
        parse_model_config(content)
    assert parse_model_config(b"") == {}
