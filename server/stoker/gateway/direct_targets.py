"""The request targets and heads of plain scoring requests, which the fast path answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from stoker.gateway.model_directory import service_path

if TYPE_CHECKING:
    from stoker.gateway.model_directory import ModelDirectory
    from stoker.gateway.regions.regions import Regions
    from stoker.gateway.scoring.call import Dialect
    from stoker.gateway.scoring.call_options import CallOptions
    from stoker.gateway.scoring.service import Service

_MAX_HEADS: Final = 4096


class PlainHead(NamedTuple):
    """The meaning of the head (request line and headers) of a plain scoring request."""

    service: Service
    authorization: bytes
    body_bytes: int
    dialect: Dialect | None
    closes: bool
    options: CallOptions | None = None


class DirectTargets:
    """The exact request targets of scoring, and the parsed heads of requests to them.

    Attributes:
        scoring: The service of each path of Azure's scoring API.
        infer: The same for infer requests of the Open Inference Protocol.
        others: Each other path, with its service and the name of its dialect: `predictions` of TorchServe's API,
            `embeddings` of OpenAI's, `rerank` of Cohere's and Jina's.
        heads: The parsed heads of plain scoring requests by their bytes; see `cache_head`.
        distant_heads: The same for callers who may not use shared memory, where others may.
    """

    def __init__(self, directory: ModelDirectory) -> None:
        self.scoring: dict[bytes, Service] = {}
        self.infer: dict[bytes, Service] = {}
        self.others: dict[bytes, tuple[Service, str]] = {}
        self.heads: dict[bytes, PlainHead] = {}
        self.distant_heads: dict[bytes, PlainHead] = {}
        self.update(directory)

    def update(self, directory: ModelDirectory) -> None:
        """Find the targets of all services again, after a change of the directory."""
        # Where deployments or versions share a path, the app chooses among them.
        alone = {
            name: service
            for name, service in directory.services.items()
            if directory.models[name].split is None
        }
        self.scoring, self.infer, self.others = {}, {}, {}
        for service in alone.values():
            self._add_by_name(service_path(service.name), service)
        if directory.only in alone and (directory.traffic is None or directory.traffic.undivided):
            self._add_by_name("", alone[directory.only])
        for name in directory.services:
            path, prediction = f"/v2/models/{quote(name)}", f"/predictions/{quote(name)}"
            if name in alone:
                self.infer[f"{path}/infer".encode()] = alone[name]
                self.others[prediction.encode()] = alone[name], "predictions"
            for version in directory.models[name].services:
                self.infer[f"{path}/versions/{version.version}/infer".encode()] = version
                self.others[f"{prediction}/{version.version}".encode()] = version, "predictions"
        # The cached heads lead to the old services.
        self.clear_heads()

    def _add_by_name(self, prefix: str, service: Service) -> None:
        self.scoring[f"{prefix}/score".encode()] = service
        for dialect in ("embeddings", "rerank"):
            self.others[f"{prefix}/v1/{dialect}".encode()] = service, dialect

    def heads_of(self, address: str, regions: Regions | None) -> dict[bytes, PlainHead]:
        """Return the cached heads for connections from this address, where callers may use these regions."""
        return self.heads if regions is None or regions.serves(address) else self.distant_heads

    @staticmethod
    def cache_head(heads: dict[bytes, PlainHead], head: bytes, meaning: PlainHead) -> None:
        """Keep the meaning of a head in the cache that `heads_of` has returned: clients repeat their heads."""
        if len(heads) >= _MAX_HEADS:
            heads.clear()
        heads[head] = meaning

    def clear_heads(self) -> None:
        """Forget all cached heads: they may mean something else now."""
        self.heads.clear()
        self.distant_heads.clear()
