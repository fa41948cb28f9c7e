"""The protocols of `stoker score`: how rows, images and files go to a server, and plain JSON that comes back."""

from __future__ import annotations

import mimetypes
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from stoker.commands.running_server import on_loopback
from stoker.errors import InvalidSettings

if TYPE_CHECKING:
    import httpx

    from stoker_client.tensors import ModelTensors

AZURE: Final = "azure"
V2: Final = "v2"
PROTOCOLS: Final = (AZURE, V2)
"""Azure's, and the Open Inference Protocol."""

_MEDIA_TYPES: Final = {".npy": "application/x-npy", ".webp": "image/webp"}
_UNKNOWN_TYPE: Final = "application/octet-stream"
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """A service of a server, and how it is reached.

    Attributes:
        protocol: One of `PROTOCOLS`.
        uri: The scoring URI.
        name: The service; None for the one of the URI, or the only one.
        key: A key or token.
        ca_file: Authorities (PEM) to trust instead of the system's.
    """

    protocol: str
    uri: str
    name: str | None
    key: str | None
    ca_file: Path | None

    def infer(self, data: Any) -> Any:
        """Send rows by the Open Inference Protocol; returns an entry a row, or several by the name of the output.

        Args:
            data: Rows, as lists or an array; rows by the name of the input; or rows that are values by such names.

        Raises:
            InvalidRows: They do not fit the model; nothing was sent.
            StokerClientError: The server answers with an error, or cannot be reached.
        """
        from stoker_client import Client
        from stoker_client.tensors import ModelTensors

        with self._http() as http:
            name = self._found_name(http)
            model = ModelTensors.of(_reply(http, "GET", f"{self._base}/v2/models/{quote(name)}"))
        uri = f"{self._base}/api/v1/service/{quote(name)}/score"
        with Client(uri, self.key, retries=0, ca_file=self.ca_file) as client:
            return plain_outputs(client.infer(by_input(model, data)))

    def send_files(self, files: Sequence[Path]) -> Any:
        """Send files unchanged, several as a form; returns the answer.

        Raises:
            StokerClientError: The server answers with an error, or cannot be reached.
        """
        with self._http() as http:
            if len(files) == 1:
                return self._post(http, files[0].read_bytes(), media_type_of(files[0]))
            parts = [("file", (file.name, file.read_bytes(), media_type_of(file))) for file in files]
            form = http.build_request("POST", self.uri, files=parts)
            return self._post(http, form.read(), form.headers["content-type"])

    def _http(self) -> httpx.Client:
        import httpx

        try:
            trusted = (
                httpx.create_ssl_context()
                if self.ca_file is None
                else ssl.create_default_context(cafile=self.ca_file)
            )
        except OSError as error:
            raise InvalidSettings(
                f"--cacert {self.ca_file} cannot be used: {error.strerror or error}"
            ) from error
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        # A proxy does not reach this machine's loopback.
        return httpx.Client(
            verify=trusted, trust_env=not on_loopback(self.uri), headers=headers, timeout=_TIMEOUT_S
        )

    def _post(self, http: httpx.Client, content: bytes, media_type: str = "application/json") -> Any:
        from stoker_client.answers import decode_json

        url = self.uri
        if self.protocol == V2:
            url = f"{self._base}/v2/models/{quote(self._found_name(http))}/infer"
        return decode_json(_reply(http, "POST", url, content=content, headers={"content-type": media_type}))

    @property
    def _base(self) -> str:
        """The server, with the prefix of its paths."""
        parts = urlsplit(self.uri)
        path = parts.path.removesuffix("/").removesuffix("/score")
        return f"{parts.scheme}://{parts.netloc}{path.partition('/api/v1/service/')[0]}"

    @property
    def _named(self) -> str | None:
        """The service that the scoring URI names."""
        path = urlsplit(self.uri).path.removesuffix("/").removesuffix("/score")
        return unquote(path.partition("/api/v1/service/")[2]) or None

    def _found_name(self, http: httpx.Client) -> str:
        """The service, or the only one of the server."""
        if found := self.name or self._named:
            return found
        from stoker_client.answers import decode_json

        return _only(decode_json(_reply(http, "GET", f"{self._base}/v2/models"))["models"])


def media_type_of(file: Path) -> str:
    """Return the media type of a file, by its name."""
    return _MEDIA_TYPES.get(file.suffix.lower()) or mimetypes.guess_type(file.name)[0] or _UNKNOWN_TYPE


def _reply(http: httpx.Client, method: str, url: str, **options: Any) -> Any:
    import httpx

    from stoker_client import ConnectionFailed
    from stoker_client.answers import Reply, error_of

    try:
        response = http.request(method, url, **options)
    except httpx.HTTPError as error:
        raise ConnectionFailed(f"the server at {url} cannot be reached: {error}") from error
    reply = Reply(response.status_code, response.content, response.headers)
    if (refused := error_of(reply)) is not None:
        raise refused
    return reply


def _only(names: Sequence[str]) -> str:
    if len(names) != 1:
        raise InvalidSettings(f"name the service with --name: the server has {', '.join(names) or 'none'}")
    return names[0]


def by_input(model: ModelTensors, data: Any) -> dict[str, Any]:
    """Return rows by the name of the input."""
    from stoker_client import InvalidRows

    if isinstance(data, Mapping):
        return dict(data)
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        if any(row.keys() != data[0].keys() for row in data):
            raise InvalidRows("the rows have different names")
        return {name: [row[name] for row in data] for name in data[0]}
    if not model.inputs:
        raise InvalidRows(f"{model.model} takes whole bodies: send them with --protocol azure")
    if len(model.inputs) != 1:
        names = ", ".join(info.name for info in model.inputs)
        raise InvalidRows(
            f'{model.model} takes rows by the names of its inputs, {{"data": {{NAME: rows}}}}: {names}'
        )
    return {model.inputs[0].name: _fitted(model.inputs[0].shape, data)}


def _fitted(shape: Sequence[int], data: Any) -> Any:
    """Return rows of single values with the axis that an input of shape (rows, 1) has."""
    import numpy as np

    array = (
        np.asarray(data, object)
        if isinstance(data, list) and data and isinstance(data[0], bytes)
        else np.asarray(data)
    )
    return array[:, None] if array.ndim == 1 and tuple(shape[1:]) == (1,) else array


def plain_outputs(arrays: Mapping[str, Any]) -> Any:
    """Return arrays by output as plain JSON; of a single output its rows."""
    plain = {name: _plain(array.tolist()) for name, array in arrays.items()}
    return next(iter(plain.values())) if len(plain) == 1 else plain


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value
