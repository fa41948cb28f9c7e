"""Keeps requests that are answered later: `Prefer: respond-async` of RFC 7240."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stoker.errors import RequestError
from stoker.gateway.http.request_ids import RequestIds, sent_ids
from stoker.gateway.http.responses import Answer, json_lines
from stoker.gateway.later.callbacks import check_callback
from stoker.gateway.scoring.call_options import GATEWAY_HEADERS, PATIENCE_HEADERS, TIER_HEADER
from stoker.gateway.scoring.load_reports import LOAD_HEADER
from stoker.keys.callers import DEFAULT

if TYPE_CHECKING:
    from starlette.types import Scope

    from stoker.gateway.later.runner import SpoolRunner
    from stoker.gateway.scoring.service import Service
    from stoker.keys.callers import CallerTerms

LATER_PATH: Final = "/later/"
_ASYNC: Final = re.compile(rb"(^|[,;\s])respond-async([,;\s]|$)", re.IGNORECASE)
_CALLBACK: Final = b"stoker-callback"
_IDEMPOTENCY: Final = b"idempotency-key"
_AT_ONCE: Final = frozenset(PATIENCE_HEADERS) - {TIER_HEADER, LOAD_HEADER}
"""Headers that only an answer to a waiting caller can honour: deadlines, and the order of a sequence."""
_NOT_KEPT: Final = frozenset(
    {
        *GATEWAY_HEADERS, LOAD_HEADER, TIER_HEADER, _CALLBACK, _IDEMPOTENCY,
        b"authorization", b"connection", b"content-length", b"expect", b"keep-alive", b"origin", b"prefer",
        b"stoker-attempt", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"x-request-id",
    }
)  # fmt: skip
_MAX_KEY_BYTES: Final = 255
_RETRY_S: Final = 1


class Kept(NamedTuple):
    """A request without its body.

    Attributes:
        head: What is kept of it: no key, and no header of its connection.
        idempotency_key: Empty without one.
        content_type: For telling requests apart.
        id_lines: Header lines with its ids.
    """

    head: dict[str, Any]
    idempotency_key: bytes
    content_type: bytes
    id_lines: bytes


class Later:
    """Keeps the requests of one frontend that are answered later."""

    def __init__(self, runner: SpoolRunner, *, keeps_address: bool, prefix: str) -> None:
        """Make it.

        Args:
            keeps_address: Whether requests keep their sender's address; where it gives rights, they must not.
            prefix: What a proxy has before the paths of this server.
        """
        self.runner = runner
        self.spool = runner.spool
        self._keeps_address = keeps_address
        self._prefix = prefix

    def is_for(self, service: Service, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request prefers to be answered later, and can be; others are answered at once."""
        signature = service.signature
        return (
            _ASYNC.search(headers.get(b"prefer", b"")) is not None
            and scope["method"] == "POST"
            and not _AT_ONCE & headers.keys()
            # A request to such a model must not run twice.
            and not (signature is not None and (signature.sequences or signature.keeps_state))
        )

    def prepare(
        self, service: Service, caller: CallerTerms, scope: Scope, headers: Mapping[bytes, bytes]
    ) -> Kept:
        """Check what a request says about its answer, before its body is read."""
        callback = headers.get(_CALLBACK, b"").decode("latin-1")
        if callback:
            check_callback(callback, self.spool.rules.callback_hosts)
        key = headers.get(_IDEMPOTENCY, b"")
        if len(key) > _MAX_KEY_BYTES:
            raise RequestError(f"'Idempotency-Key' has more than {_MAX_KEY_BYTES} bytes.")
        ids = RequestIds(*sent_ids(headers))
        kept = [(name, value) for name, value in scope["headers"] if name not in _NOT_KEPT]
        # The 202 and the answer have the same id.
        kept.append((b"x-request-id", ids.request_id))
        client = scope.get("client")
        head = {
            "method": "POST",
            "path": scope["path"],
            "raw_path": (scope.get("raw_path") or scope["path"].encode()).decode("latin-1"),
            "query": scope["query_string"].decode("latin-1"),
            "headers": [(name.decode("latin-1"), value.decode("latin-1")) for name, value in kept],
            "client": client if client and self._keeps_address else None,
            "model": service.name,
            "caller": caller.identity,
            "callback": callback,
        }
        return Kept(head, key, headers.get(b"content-type", b""), ids.lines)

    async def keep(self, kept: Kept, body: bytes) -> Answer:
        """Put a request into the spool, and return the 202 that says where its answer will be."""
        head, runner = kept.head, self.runner
        expires_s = int(time.time() + self.spool.rules.keep_s)
        model, caller, key = head["model"], head["caller"], kept.idempotency_key
        # A named key is one owner of the spool, however many models it opens.
        owner = f"{model}\0{caller}" if caller == DEFAULT.identity else caller
        name = await runner.call(self.spool.new_id, owner, key and model.encode() + b"\0" + key)
        head |= {
            "expires_s": expires_s,
            "location": f"{self._prefix}{LATER_PATH}{expires_s:08x}-{name}",
            "fingerprint": await runner.call(_fingerprint, head, kept.content_type, body),
        }
        known = await runner.call(partial(self.spool.add, keyed=bool(key)), name, head, body)
        if known is not None:
            return accept(known.head, known.attempt, kept.id_lines)
        runner.submit(name)
        return accept(head, 0, kept.id_lines)


def _fingerprint(head: Mapping[str, Any], content_type: bytes, body: bytes) -> str:
    digest = hashlib.sha256()
    for part in (head["raw_path"].encode(), head["query"].encode(), content_type, body):
        digest.update(b"%d\n" % len(part))
        digest.update(part)
    return digest.hexdigest()


def accept(head: Mapping[str, Any], attempt: int, id_lines: bytes = b"") -> Answer:
    """Return the 202 of a request that has no answer yet; with `id_lines` to its sender."""
    expires = datetime.fromtimestamp(head["expires_s"], UTC)
    content = {
        "status": "running" if attempt else "waiting",
        "attempt": attempt,
        "location": head["location"],
        "expires": expires.isoformat(),
    }
    body = json.dumps(content).encode()
    lines = b"location: %b\r\nretry-after: %d\r\nexpires: %b\r\ncache-control: no-store\r\n" % (
        head["location"].encode(),
        _RETRY_S,
        format_datetime(expires, usegmt=True).encode(),
    )
    if id_lines:
        lines += b"preference-applied: respond-async\r\n" + id_lines
    return Answer(202, json_lines(body) + lines, body)
