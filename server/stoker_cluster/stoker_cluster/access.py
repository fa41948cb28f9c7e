"""The API of a cluster: the only module that imports a Kubernetes client, and only when a cluster is used.

Objects are plain dicts. They are applied on the server, by the field manager `stoker`: fields that other managers
have changed since are reported, and not overwritten.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from stoker.system.extras import how_to_install
from stoker_cluster.errors import ClusterError, ClusterRefusal
from stoker_cluster.refusals import read_refusal

_MANAGER: Final = "stoker"
"""The field manager of applied fields."""

_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 30.0
_CHUNK_BYTES: Final = 65_536
_CREATED: Final = 201
_NOT_FOUND: Final = 404
_IN_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"


class Reference(Struct, frozen=True, order=True):
    """Identifies an object.

    Attributes:
        api_version: Its group and version, `apps/v1`, or `v1`.
        namespace: Its namespace; None for those that are in none.
    """

    api_version: str
    kind: str
    namespace: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Answer(Struct, frozen=True):
    """The answer of the API server: the object as it is now, and whether it was created."""

    content: Any
    is_new: bool


class Cluster:
    """A cluster, as named by a context of a kubeconfig.

    Args:
        request: Sends a request, as the method `request` of `kubernetes.dynamic.DynamicClient`.
        namespace: Its namespace, for objects that name none.
        tunnel: Opens a connection to a port of a pod.

    Methods raise `ClusterError` if the cluster cannot be asked, and `ClusterRefusal` if it refuses.
    """

    def __init__(
        self,
        request: Callable[..., Any],
        context: str,
        namespace: str,
        warn: Callable[[str], object] = lambda _: None,
        tunnel: Callable[[str, str, int], socket.socket] | None = None,
    ) -> None:
        self._request = request
        self._tunnel = tunnel
        self.context = context
        self.namespace = namespace
        self._warn = warn
        self._kinds: dict[str, Mapping[str, Any]] = {}

    @classmethod
    def connect(
        cls, context: str | None = None, *, warn: Callable[[str], object] = lambda _: None
    ) -> Cluster:
        """Use a context of the kubeconfig (`KUBECONFIG`, else `~/.kube/config`), or in a pod its service account.

        Sends nothing yet.

        Args:
            context: Its name; the current one by default.
        """
        try:
            from kubernetes import client, config
            from kubernetes.dynamic import DynamicClient
        except ImportError:
            raise ClusterError(f"the package kubernetes is missing; {how_to_install('cluster')}") from None
        settings = client.Configuration()
        # A server that does not answer is reported at once, not after three tries.
        settings.retries = False
        file = os.environ.get("KUBECONFIG") or "~/.kube/config"
        try:
            if context is None and "KUBERNETES_SERVICE_HOST" in os.environ and not _is_there(file):
                config.load_incluster_config(client_configuration=settings)
                named, namespace = "in-cluster", _IN_POD.read_text(encoding="utf-8").strip()
                connected = client.ApiClient(settings)
            else:
                contexts, current = config.list_kube_config_contexts(config_file=file)
                found = {one["name"]: one for one in contexts}.get(context) if context else current
                if found is None:
                    known = ", ".join(sorted(one["name"] for one in contexts))
                    raise ClusterError(f"{file} has no context {context}; it has {known}")
                named, namespace = found["name"], found["context"].get("namespace") or "default"
                connected = config.new_client_from_config(
                    config_file=file, context=named, client_configuration=settings
                )
        except config.ConfigException as error:
            raise ClusterError(
                f"there is no cluster to ask: {error}; set KUBECONFIG, or name --context"
            ) from error
        # Kinds are looked up when they are first used, so no discovery is needed before.
        asking = DynamicClient(connected, discoverer=lambda *_: None)
        return cls(asking.request, str(named), namespace, warn, partial(_open_tunnel, connected))

    def reference(self, content: Mapping[str, Any]) -> Reference:
        """The reference to this object, in the namespace of the context if it names none."""
        api_version, kind, metadata = content["apiVersion"], content["kind"], content["metadata"]
        namespace = metadata.get("namespace") or self.namespace
        is_in_one = self._kind(api_version, kind)["namespaced"]
        return Reference(api_version, kind, namespace if is_in_one else None, metadata["name"])

    def knows(self, api_version: str, kind: str) -> bool:
        """Whether the cluster has this kind of object."""
        return kind in self._group(api_version)

    def find(self, reference: Reference) -> dict[str, Any] | None:
        """Return an object; None if it does not exist."""
        found: dict[str, Any] | None = self.get(self._path(reference))
        return found

    def list(
        self, api_version: str, kind: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        """Return objects of a kind.

        Args:
            namespace: Their namespace; None is all of the cluster.
            labels: A label selector, as for `kubectl --selector`.
            fields: A field selector, as for `kubectl --field-selector`.
        """
        query = {"labelSelector": labels, "fieldSelector": fields}
        found = self.get(self._collection(api_version, kind, namespace), **query) or {}
        return [{"apiVersion": api_version, "kind": kind, **one} for one in found.get("items", [])]

    def apply(
        self,
        content: Mapping[str, Any],
        *,
        manager: str = _MANAGER,
        force: bool = False,
        dry_run: bool = False,
    ) -> Answer:
        """Apply an object on the server: its fields are set, and belong to the manager from then on.

        Args:
            force: Take over fields that belong to other managers.
            dry_run: Change nothing, and return the object as it would be.

        Raises:
            FieldConflict: Other managers have changed fields that it sets.
        """
        query = {"fieldManager": manager, "force": str(force).lower(), "dryRun": "All" if dry_run else ""}
        return self._send("patch", self._path(self.reference(content)), content, _APPLY, **query)

    def create(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Create a new object."""
        reference = self.reference(content)
        path = self._collection(reference.api_version, reference.kind, reference.namespace)
        made: dict[str, Any] = self._send("post", path, content, fieldManager=_MANAGER).content
        return made

    def merge(self, reference: Reference, change: Mapping[str, Any], part: str = "") -> dict[str, Any]:
        """Merge a change into an object, or into a part of it such as `scale`; None removes a field."""
        path = "/".join([self._path(reference), *([part] if part else [])])
        merged: dict[str, Any] = self._send("patch", path, change, _MERGE, fieldManager=_MANAGER).content
        return merged

    def delete(self, reference: Reference) -> bool:
        """Delete an object and what it owns; returns whether it existed."""
        try:
            self._send("delete", self._path(reference), {"propagationPolicy": "Background"})
        except ClusterRefusal as error:
            if error.http_status != _NOT_FOUND:
                raise
            return False
        return True

    def watch(
        self, api_version: str, kind: str, namespace: str | None, labels: str = "", *, within_s: int
    ) -> Generator[tuple[str, dict[str, Any]]]:
        """Yield events of a kind of objects: first `ADDED` for each that exists, then every change.

        Args:
            namespace: Their namespace; None is all of the cluster.
            labels: What their labels are.
            within_s: When to stop, in whole seconds.
        """
        query = {"labelSelector": labels, "watch": "true", "timeoutSeconds": str(within_s)}
        path = self._collection(api_version, kind, namespace)
        for line in self._lines(path, within_s + _ANSWER_S, **query):
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise ClusterError(f"the cluster ends watching {kind}: {event['object'].get('message')}")
            yield event["type"], event["object"]

    def log(self, namespace: str, pod: str, *, lines: int | None = None) -> Iterator[str]:
        """Yield the lines of a pod's log.

        Args:
            lines: How many of the last lines at most.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        yield from self._lines(path, _ANSWER_S, tailLines="" if lines is None else str(lines))

    def may(self, verb: str, resource: str, namespace: str | None, group: str = "") -> bool:
        """Whether the account may do this, by the cluster's own rules."""
        wanted = {"verb": verb, "resource": resource, "group": group}
        attributes = {**wanted, "namespace": namespace or ""}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool(self._send("post", path, body).content["status"]["allowed"])

    def tunnel(self, namespace: str, pod: str, port: int) -> socket.socket:
        """Open a connection to a port of a pod, through the API server and the pod's node."""
        assert self._tunnel is not None
        with _errors(self.context):
            return self._tunnel(namespace, pod, port)

    def get(self, path: str, **query: str) -> Any:
        """Return the object at a path of the API; None if there is none."""
        try:
            return self._send("get", path, **query).content
        except ClusterRefusal as error:
            if error.http_status != _NOT_FOUND:
                raise
            return None

    def _send(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: str
    ) -> Answer:
        with _errors(self.context):
            response = self._request(
                method,
                path,
                # The client serialises JSON, but not YAML.
                body=json.dumps(body) if content_type == _APPLY else body,
                content_type=content_type,
                query_params=[(name, value) for name, value in query.items() if value],
                header_params={"Accept": "application/json"},
                _request_timeout=(_CONNECT_S, _ANSWER_S),
                serialize=False,
            )
            content = json.loads(response.data)
        for warning in response.headers.getlist("Warning"):
            # 299 - "what it says"
            self._warn(warning.partition('"')[2].rstrip('"') or warning)
        return Answer(content, response.status == _CREATED)

    def _lines(self, path: str, within_s: float, **query: str) -> Iterator[str]:
        with _errors(self.context):
            response = self._request(
                "get",
                path,
                query_params=[(name, value) for name, value in query.items() if value],
                header_params={"Accept": "application/json, */*"},
                _request_timeout=(_CONNECT_S, within_s),
                serialize=False,
            )
            rest = b""
            try:
                for part in response.stream(_CHUNK_BYTES, decode_content=False):
                    *whole, rest = (rest + part).split(b"\n")
                    yield from (line.decode(errors="replace") for line in whole)
            finally:
                response.close()
            if rest:
                yield rest.decode(errors="replace")

    def _path(self, reference: Reference) -> str:
        collection = self._collection(reference.api_version, reference.kind, reference.namespace)
        return f"{collection}/{reference.name}"

    def _collection(self, api_version: str, kind: str, namespace: str | None) -> str:
        place = "" if namespace is None else f"namespaces/{namespace}/"
        return f"{_root(api_version)}/{place}{self._kind(api_version, kind)['name']}"

    def _kind(self, api_version: str, kind: str) -> Mapping[str, Any]:
        kinds = self._group(api_version)
        if kind not in kinds:
            raise ClusterError(
                f"the cluster {self.context} knows no {kind} of {api_version}; install what brings it, or leave out "
                "the option that asks for it"
            )
        found: Mapping[str, Any] = kinds[kind]
        return found

    def _group(self, api_version: str) -> Mapping[str, Any]:
        if api_version not in self._kinds:
            listed = self.get(_root(api_version)) or {"resources": []}
            self._kinds[api_version] = {
                one["kind"]: one for one in listed["resources"] if "/" not in one["name"]
            }
        return self._kinds[api_version]


def _open_tunnel(client: Any, namespace: str, pod: str, port: int) -> socket.socket:
    from kubernetes.client.exceptions import ApiException
    from kubernetes.stream.ws_client import PortForward, create_websocket, get_websocket_url

    class Tunnel(PortForward):  # type: ignore[misc]  # the client has no types
        def _proxy(self) -> None:
            try:
                super()._proxy()
            finally:
                # Where the pod ends first, the client's own would leave its end open.
                self.websocket.shutdown()

    # The client's own class for this takes seconds to import.
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward"
    _, url, headers, *_ = client.param_serialize(
        "GET", path, query_params=[("ports", str(port))], auth_settings=["BearerToken"]
    )
    try:
        websocket = create_websocket(client.configuration, get_websocket_url(url), headers)
    except Exception as error:  # what the WebSocket says is not of one kind
        raise ApiException(status=0, reason=str(error)) from error
    opened: socket.socket = Tunnel(websocket, [port]).socket(port)._socket  # noqa: SLF001  # what it wraps
    return opened


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _is_there(files: str) -> bool:
    return any(Path(file).expanduser().exists() for file in files.split(os.pathsep))


@contextmanager
def _errors(context: str) -> Iterator[None]:
    """Turn errors of the client into errors with the API server's message."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        raise read_refusal(error.status, error.reason, error.body) from error
    except (HTTPError, OSError) as error:
        raise ClusterError(f"the cluster {context} cannot be asked: {error}") from error
