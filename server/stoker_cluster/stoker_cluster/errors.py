"""Errors of clusters, which the operator can fix."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.errors import OperatorError


class ClusterError(OperatorError):
    """A cluster cannot be reached, or did not reach the wanted state."""

    code = "cluster_error"


class ClusterRefusal(ClusterError):
    """The API server of a cluster refuses, with an HTTP status such as 403."""

    code = "cluster_refusal"

    def __init__(self, message: str, http_status: int) -> None:
        super().__init__(message)
        self.http_status = http_status


class FieldConflict(ClusterRefusal):
    """Another owner has changed fields of an object that are applied.

    Attributes:
        fields: Who changed each field, as the API server reports it, by path.
    """

    code = "field_conflict"

    def __init__(self, message: str, http_status: int, fields: Mapping[str, str]) -> None:
        super().__init__(message, http_status)
        self.fields = fields
