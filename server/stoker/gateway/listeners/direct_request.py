"""One plain scoring request of a connection: uvicorn's view of it, its body as it arrives, and its call."""

from __future__ import annotations

import io
from asyncio import Event
from typing import TYPE_CHECKING

from stoker.gateway.scoring.call_options import CallOptions

if TYPE_CHECKING:
    from stoker.gateway.http.body_budget import Allowance
    from stoker.gateway.http.request_ids import RequestIds
    from stoker.gateway.scoring.call import Call, Dialect
    from stoker.gateway.scoring.service import Service
    from stoker.keys.callers import CallerTerms


class DirectRequest:
    """The plain request of a connection; one object serves all of them, one after the other.

    The first six attributes are those that uvicorn reads and sets of its own cycles.

    Attributes:
        service: The service whose body is arriving; None between bodies.
        first_chunk: The body, if it came in one piece.
        gathered: The body, if it came in several pieces, or is received straight.
        allowance: The memory that is reserved for a large body; None for others.
        call: The call that scores the request; None before it begins and after it is answered.
    """

    __slots__ = (
        "allowance",
        "body",
        "call",
        "dialect",
        "disconnected",
        "first_chunk",
        "gathered",
        "ids",
        "keep_alive",
        "message_event",
        "more_body",
        "options",
        "response_complete",
        "service",
    )

    def __init__(self) -> None:
        self.body = bytearray()
        self.disconnected = False
        self.keep_alive = True
        self.message_event = Event()
        self.more_body = False
        self.response_complete = True
        self.service: Service | None = None
        self.dialect: Dialect | None = None
        self.ids: RequestIds | None = None
        self.options: CallOptions | None = None
        self.first_chunk = b""
        self.gathered: io.BytesIO | None = None
        self.allowance: Allowance | None = None
        self.call: Call | None = None

    def gather(self, chunk: bytes) -> None:
        """Gather the body from its second chunk on; unlike joining chunks, this never holds the content twice."""
        self.gathered = io.BytesIO()
        self.gathered.write(self.first_chunk)
        self.gathered.write(chunk)

    def set_caller(self, caller: CallerTerms, options: CallOptions | None) -> None:
        """Set the caller of the call before it is submitted; the caller's terms may change."""
        if self.call is not None:
            options = CallOptions(caller) if options is None else options._replace(caller=caller)
            options.apply_to(self.call)

    def release_allowance(self) -> None:
        """Release the memory that is reserved for the body."""
        if self.allowance is not None:
            self.allowance.release()
            self.allowance = None

    def abandon(self) -> None:
        """Forget the request, whose caller has gone."""
        if self.call is not None:
            self.call.abandon()
            self.call = None
        self.release_allowance()
        self.service = None
