"""Requests to an API server and reading its answers; the server here is a function."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client.exceptions import ApiException
from urllib3 import HTTPResponse
from urllib3.exceptions import ConnectTimeoutError

from stoker_cluster.access import Cluster, Reference
from stoker_cluster.errors import ClusterError, ClusterRefusal, FieldConflict

SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "digits"}}
KINDS = {
    "resources": [
        {"name": "services", "kind": "Service", "namespaced": True},
        {"name": "services/status", "kind": "ScaledObject", "namespaced": True},
    ]
}


def answered(content: Any, status: int = 200, warnings: list[str] | None = None) -> HTTPResponse:
    """An answer of the API server."""
    headers = [("Warning", f'299 - "{warning}"') for warning in warnings or []]
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return HTTPResponse(body=io.BytesIO(body), status=status, headers=dict(headers), preload_content=False)


def cluster(answer: Callable[..., HTTPResponse], **options: Any) -> Cluster:
    """A cluster whose API server knows Services, and gives this answer to all else."""

    def request(method: str, path: str, **options: Any) -> HTTPResponse:
        return answered(KINDS) if path == "/api/v1" else answer(method, path, **options)

    return Cluster(request, "test", "models", **options)


def refused(status: int, **content: Any) -> Callable[..., HTTPResponse]:
    """An API server that refuses."""

    def answer(*_: Any, **__: Any) -> HTTPResponse:
        error = ApiException(status=status, reason="Refused")
        error.body = json.dumps(content) if content else "<html>"
        raise error

    return answer


def test_objects_are_applied_where_the_context_says_and_by_stoker() -> None:
    """An object without a namespace gets the context's; warnings of the server are passed on."""
    request: dict[str, Any] = {}
    warnings: list[str] = []

    def answer(method: str, path: str, **options: Any) -> HTTPResponse:
        request.update(method=method, path=path, **options)
        return answered(SERVICE, 201, ["is deprecated"])

    made = cluster(answer, warn=warnings.append).apply(SERVICE, dry_run=True)
    assert made.is_new
    assert made.content == SERVICE
    assert (request["method"], request["path"]) == ("patch", "/api/v1/namespaces/models/services/digits")
    assert request["content_type"] == "application/apply-patch+yaml"
    assert dict(request["query_params"]) == {"fieldManager": "stoker", "force": "false", "dryRun": "All"}
    assert json.loads(request["body"]) == SERVICE
    assert warnings == ["is deprecated"]


def test_fields_of_others_are_a_conflict_with_their_names() -> None:
    """The error names each field and its owner."""
    cause = {"reason": "FieldManagerConflict", "field": ".spec.type", "message": 'conflict with "kubectl"'}
    answer = refused(409, message="Apply failed", details={"causes": [cause]})
    with pytest.raises(FieldConflict, match="Apply failed") as raised:
        cluster(answer).apply(SERVICE)
    assert raised.value.fields == {".spec.type": 'conflict with "kubectl"'}


def test_refusal_of_the_api_server_has_its_words() -> None:
    """A refusal has the server's words or its status; a missing object is None or False."""
    reference = Reference("v1", "Service", "models", "digits")
    with pytest.raises(ClusterRefusal, match="may not") as raised:
        cluster(refused(403, message="may not")).find(reference)
    assert raised.value.http_status == 403
    with pytest.raises(ClusterRefusal, match="Refused"):
        cluster(refused(502)).find(reference)
    with pytest.raises(ClusterRefusal, match="may not"):
        cluster(refused(403, message="may not")).delete(reference)
    assert cluster(refused(404, message="not found")).find(reference) is None
    assert cluster(refused(404, message="not found")).delete(reference) is False


def test_a_cluster_that_does_not_answer_is_named() -> None:
    """One sentence says which context, and why."""

    def answer(*_: Any, **__: Any) -> HTTPResponse:
        raise ConnectTimeoutError("timed out")

    with pytest.raises(ClusterError, match="the cluster test cannot be asked: timed out"):
        cluster(answer).get("/version")


def test_a_kind_that_the_cluster_has_not_says_so() -> None:
    """Parts of kinds are no kinds."""
    known = cluster(refused(404, message="not found"))
    assert known.knows("v1", "Service")
    assert not known.knows("keda.sh/v1alpha1", "ScaledObject")
    with pytest.raises(ClusterError, match=r"knows no ScaledObject of keda\.sh/v1alpha1"):
        known.list("keda.sh/v1alpha1", "ScaledObject")


def test_events_come_a_line_each_and_an_error_ends_them() -> None:
    """Events come in order, from parts of any size."""
    lines = [{"type": "ADDED", "object": SERVICE}, {"type": "ERROR", "object": {"message": "too old"}}]
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    events = cluster(lambda *_, **__: answered(body)).watch("v1", "Service", "models", within_s=1)
    assert next(events) == ("ADDED", SERVICE)
    with pytest.raises(ClusterError, match="too old"):
        next(events)


def test_the_last_line_of_a_log_needs_no_end() -> None:
    """A pod may be about to write more of it."""
    log = cluster(lambda *_, **__: answered(b"first\nsecond")).log("models", "digits-1", lines=2)
    assert list(log) == ["first", "second"]


def test_unknown_context_error_lists_the_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent: the kubeconfig alone is read."""
    content = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "models"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "here",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert (Cluster.connect().context, Cluster.connect("here").namespace) == ("here", "models")
    with pytest.raises(ClusterError, match="has no context there; it has here"):
        Cluster.connect("there")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(ClusterError, match="there is no cluster to ask"):
        Cluster.connect()
