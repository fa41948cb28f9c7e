"""EndpointSlices, read from the API server that the environment of each pod names."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from stoker.errors import OperatorError

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_ANSWER_S: Final = 5.0
_SERVICE_LABEL: Final = "kubernetes.io/service-name"


class PodSliceReader:
    """Reads from the API server that the environment of each pod names.

    A router asks for one small list a second and nothing else, for which it needs no client library in its image.
    """

    def __init__(self, host: str, port: int, account: Path = _ACCOUNT) -> None:
        """Prepare to ask.

        Args:
            host: Address of the API server.
            account: Folder with the token of the pod, its namespace, and the certificate of the API server.
        """
        self._place = host, port
        self._token = account / "token"
        try:
            self._context = ssl.create_default_context(cafile=account / "ca.crt")
            self._token.read_bytes()
            self._own = (account / "namespace").read_text(encoding="utf-8").strip()
        except OSError as error:
            raise OperatorError(
                f"the pod has no account at the API server ({error}); set automountServiceAccountToken for it"
            ) from error

    @classmethod
    def of_this_pod(cls) -> PodSliceReader:
        """Return the reader of the pod that this process runs in."""
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{word}", "") for word in ("HOST", "PORT"))
        if not host or not port.isdigit():
            raise OperatorError("--service is for pods, and this is none; name the servers with --servers")
        return cls(host, int(port))

    async def endpoint_slices(self, namespace: str | None, service: str) -> Sequence[Mapping[str, Any]]:
        """Return the EndpointSlices of a Service; without a namespace it is that of the pod.

        Raises:
            OSError: The API server does not answer, or refuses.
        """
        return await asyncio.to_thread(self._read, namespace or self._own, service)

    def _read(self, namespace: str, service: str) -> Sequence[Mapping[str, Any]]:
        # With `resourceVersion=0` the API server answers from its cache.
        selector = quote(f"{_SERVICE_LABEL}={service}", safe="")
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={selector}"
        connection = http.client.HTTPSConnection(*self._place, timeout=_ANSWER_S, context=self._context)
        try:
            # The kubelet writes a new token long before the old one ends.
            token = self._token.read_text(encoding="ascii").strip()
            connection.request(
                "GET", f"{path}&resourceVersion=0", headers={"Authorization": f"Bearer {token}"}
            )
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != http.HTTPStatus.OK:
                raise OSError(
                    f"the API server answers {answer.status} for the endpoints of {namespace}/{service}"
                )
            content = json.loads(body)
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"the API server gives no list of endpoints: {error}") from error
        finally:
            connection.close()
        items: Sequence[Mapping[str, Any]] = content["items"]
        return items
