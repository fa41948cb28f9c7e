"""The context of a handler: `ts.context`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_SEQUENCE_HEADER: Final = "ts_request_sequence_"


class RequestProcessor:
    """The head of one request, and the status and headers that its answer is to have."""

    def __init__(self, request_header: Mapping[str, Any]) -> None:
        self._request_header = dict(request_header)
        self._lower = {name.lower(): value for name, value in request_header.items()}
        self._status: tuple[int, str | None] = (200, None)
        self._response_header: dict[str, str] = {}

    def get_request_property(self, key: str) -> Any:
        """Return a header, whatever the case of its name; of a form's field its type: `{"content-type": …}`."""
        return self._request_header.get(key, self._lower.get(key.lower()))

    def get_request_properties(self) -> dict[str, Any]:
        """Return all headers."""
        return self._request_header

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        """Set the status of the answer."""
        self._status = code, reason_phrase

    def get_response_status_code(self) -> int:
        """Return the status of the answer."""
        return self._status[0]

    def get_response_status_phrase(self) -> str | None:
        """Return the phrase of the answer's status, which is not sent."""
        return self._status[1]

    def add_response_property(self, key: str, value: str) -> None:
        """Set a header of the answer."""
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        """Return the headers of the answer that have been set."""
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        """Return a header of the answer; None if it has not been set."""
        return self._response_header.get(key)


class Context:
    """A handler's view of its model and of the requests of a call, and its place to set statuses and headers.

    Attributes:
        manifest: The archive's `MAR-INF/MANIFEST.json`.
        model_yaml_config: The archive's configuration, mostly `model-config.yaml`; empty without one.
        metrics: Takes the handler's own metrics.
        request_ids: The ids of the requests of a call, by their places.
        request_processor: The heads of these requests.
    """

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any],
        batch_size: int,
        gpu: int | None,
        mms_version: str,
        limit_max_image_pixels: bool = True,
        metrics: Any = None,
        model_yaml_config: dict[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.model_yaml_config = {} if model_yaml_config is None else model_yaml_config
        self.metrics = metrics
        self.request_ids: dict[int, str] | None = None
        self.request_processor: Sequence[RequestProcessor] = ()
        self.stopping_criteria: Any = None
        self.header_key_sequence_id = f"{_SEQUENCE_HEADER}id"
        self.header_key_sequence_start = f"{_SEQUENCE_HEADER}start"
        self.header_key_sequence_end = f"{_SEQUENCE_HEADER}end"
        self._system_properties = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }

    @property
    def system_properties(self) -> dict[str, Any]:
        """`model_dir`, `gpu_id` (None on the CPU), `batch_size` and further facts."""
        return self._system_properties

    def get_request_id(self, idx: int = 0) -> str | None:
        """Return the id of the request at a place."""
        return None if self.request_ids is None else self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        """Return a header of the request at a place; None if it was not sent."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        """Return all headers of the request at a place."""
        return self.request_processor[idx].get_request_properties()

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the content type of the answer at a place."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """Return the content type that has been set of the answer at a place."""
        return self.get_response_headers(idx).get("content-type")

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of the answer at a place; the phrase is not sent."""
        self.request_processor[idx].report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of all answers."""
        for processor in self.request_processor:
            processor.report_status(code, reason_phrase=phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        """Return the status of the answer at a place."""
        processor = self.request_processor[idx]
        return processor.get_response_status_code(), processor.get_response_status_phrase()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header of the answer at a place."""
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """Return the headers that have been set of the answer at a place."""
        return self.request_processor[idx].get_response_headers()

    def get_sequence_id(self, idx: int) -> Any:
        """Return the header of the request at a place that names its sequence."""
        return self.get_request_header(idx, self.header_key_sequence_id)
