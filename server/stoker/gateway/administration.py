"""Requests of a frontend to the supervisor: list, load, unload models, change settings; and their authorization."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from stoker.control import frontend_messages as messages
from stoker.errors import Forbidden, NotReady, StokerError
from stoker.keys.access import Access
from stoker.keys.keyring import ADMIN, Keys
from stoker.keys.verifier import KeyVerifier
from stoker.settings.choices import Adjustments
from stoker.settings.versions import VersionPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from stoker.control.frontend_messages import AdminRules
    from stoker.gateway.http.requests import Requester
    from stoker.keys.generation import Generation
    from stoker.settings.traffic import Canary


class AdminAccess(Struct, frozen=True):
    """The callers that may load and unload models.

    Attributes:
        callers: The credential it takes: the admin key, or none.
        refusal: Why nobody may; empty if it is allowed.
        polls: Whether the server polls the model folders by itself, in which case requests to load or unload are
            refused.
    """

    callers: Access = Access()  # it never changes
    refusal: str = ""
    polls: bool = False

    def check_loading(self, requester: Requester) -> None:
        """Refuse a request that may not load or unload a model; see `check`."""
        self.check(requester)
        if self.polls:
            raise NotReady("explicit model load / unload is not allowed if polling is enabled")

    def check(self, requester: Requester) -> None:
        """Refuse a request whose caller may not change the served models.

        Raises:
            Unauthorized: The admin key is needed and was not sent.
            Forbidden: Nobody may, or the request comes from a web page while no key is needed: any page could send
                it then.
        """
        if self.refusal:
            raise Forbidden(self.refusal)
        if self.callers.open and requester.from_page:
            raise Forbidden(
                "Pages may not change what a server serves, or its settings, where that needs no key."
            )
        self.callers.check(requester.authorization, requester.sent_as)


def admin_access(keys_dir: Path, rules: AdminRules, key_changes: Generation | None = None) -> AdminAccess:
    """Return the access rules for loading and unloading models."""
    if not rules.needs_key:
        refusal = (
            ""
            if rules.local
            else (
                "Models and settings cannot be changed here: the server needs no keys and can be reached by others; "
                "start it with STOKER_ADMIN_KEY, or with --host 127.0.0.1."
            )
        )
        return AdminAccess(refusal=refusal, polls=rules.polls)
    try:
        given = Keys(rules.key, rules.key) if rules.key else None
        verifier = KeyVerifier(keys_dir, ADMIN, given, generation=key_changes)
        return AdminAccess(admin_key(verifier), polls=rules.polls)
    except FileNotFoundError:
        refusal = (
            "Models and settings cannot be changed here: the server could not write an admin key into its workspace; "
            "start it with STOKER_ADMIN_KEY."
        )
        return AdminAccess(refusal=refusal, polls=rules.polls)


def admin_key(verifier: KeyVerifier) -> Access:
    """Return the access that takes the admin key."""
    return Access(
        verifier, needs="Changing models and settings needs the admin key ('stoker keys show admin')"
    )


class _Refused(StokerError):
    """An error of the supervisor's, with its status and code."""

    def __init__(self, refusal: messages.Refusal) -> None:
        super().__init__(refusal.error, retry_after_s=refusal.retry_after_s)
        self.status = refusal.status  # type: ignore[misc]  # the class attribute is the default
        self.code = refusal.code  # type: ignore[misc]  # the class attribute is the default


def _shutting_down() -> NotReady:
    return NotReady("The server is shutting down.", retry_after_s=1)


class Administration:
    """A frontend's requests to the supervisor."""

    def __init__(self, send: Callable[[messages.Ask], object], access: AdminAccess) -> None:
        """Send requests by `send`; replies are passed to `accept_reply`."""
        self.access = access
        self._send = send
        self._tickets = itertools.count()
        self._waiting: dict[int, asyncio.Future[Sequence[Mapping[str, Any]]]] = {}
        self._wakes: set[int] = set()
        """Tickets of loads for which requests wait that have come already: a server that stops answers them."""
        self._closed = False

    async def events(self, model: str | None = None) -> Sequence[Mapping[str, Any]]:
        """Return the recent events of one model's versions, or of all, the oldest first."""
        return await self._ask(lambda ticket: messages.AskEvents(ticket, model))

    async def index(self, *, ready: bool = False) -> Sequence[Mapping[str, str]]:
        """Return all models with their versions, in the form of the model repository extension."""
        return await self._ask(lambda ticket: messages.AskIndex(ticket, ready))

    async def load(
        self,
        model: str,
        *,
        version: int | None = None,
        versions: str | tuple[int, ...] | None = None,
        adjustments: Adjustments = Adjustments(),  # noqa: B008  # it never changes
    ) -> None:
        """Load a model; returns when it is served. Changed files are loaded again; a failure changes nothing.

        Args:
            versions: Which versions, if not those of the model's settings; see `read_versions`.
            adjustments: Settings of batching that replace the model's own; not used for a single version.
        """
        policy = None if versions is None else VersionPolicy.of(versions)
        await self._ask(lambda ticket: messages.AskLoad(ticket, model, version, policy, adjustments))

    async def unload(self, model: str, *, version: int | None = None) -> None:
        """Unload a model or one of its versions, and return when its last requests have been answered."""
        await self._ask(lambda ticket: messages.AskUnload(ticket, model, version))

    async def wake(self, model: str, version: int, timeout_s: float, caller: str) -> None:
        """Have a version loaded that is loaded on demand; returns when every frontend can score with it.

        Args:
            timeout_s: How long the request waits that asks for it.
            caller: Whose request it is: callers take turns.

        Raises:
            StokerError: It cannot be loaded, or there is no room for it now.
        """
        await self._ask(
            lambda ticket: messages.AskWake(ticket, model, version, timeout_s, caller), wakes=True
        )

    async def shift(self, model: str, canary: Canary) -> None:
        """Set the weights by which requests that name no version are divided among the versions of a model."""
        await self._ask(lambda ticket: messages.AskShift(ticket, model, canary))

    async def set_default(self, model: str, version: int) -> None:
        """Make a served version the one for requests that name none, until its label is moved."""
        await self._ask(lambda ticket: messages.AskDefault(ticket, model, version))

    async def reload(self) -> None:
        """Replace the server by a new one with the present settings and code, once that serves."""
        await self._ask(messages.AskReload)

    async def traces(self, model: str, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change which requests of a model are traced, and return the settings that hold now; see `AskTraces`."""
        (settings,) = await self._ask(lambda ticket: messages.AskTraces(ticket, model, changes))
        return settings

    async def logs(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change the log settings of all processes, and return those that hold now; see `AskLogs`."""
        (settings,) = await self._ask(lambda ticket: messages.AskLogs(ticket, changes))
        return settings

    async def sign_in(self, token: str) -> Mapping[str, str]:
        """Return the primary key of each service for the token of the sign-in link, which is then used up.

        Raises:
            Unauthorized: It was used before, has expired, or is another one.
        """
        entries = await self._ask(lambda ticket: messages.AskKeys(ticket, token))
        return {entry["name"]: entry["key"] for entry in entries}

    def accept_reply(self, reply: messages.Reply | messages.Refusal) -> None:
        """Resolve the request that this reply of the supervisor's answers."""
        answered = self._waiting.pop(reply.ticket, None)
        if answered is None or answered.done():
            return
        if isinstance(reply, messages.Refusal):
            answered.set_exception(_Refused(reply))
        else:
            answered.set_result(reply.entries)

    def close(self) -> None:
        """Refuse the requests that wait for the supervisor, and all later ones: a load may outlast the shutdown.

        Not those of `wake`: the requests that wait for it have deadlines.
        """
        self._closed = True
        for ticket in self._waiting.keys() - self._wakes:
            answered = self._waiting.pop(ticket)
            if not answered.done():
                answered.set_exception(_shutting_down())

    async def _ask(
        self, worded: Callable[[int], messages.Ask], *, wakes: bool = False
    ) -> Sequence[Mapping[str, Any]]:
        if self._closed and not wakes:
            raise _shutting_down()
        ticket = next(self._tickets)
        if wakes:
            self._wakes.add(ticket)
        answered: asyncio.Future[Sequence[Mapping[str, Any]]] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = answered
        self._send(worded(ticket))
        try:
            return await answered
        finally:
            self._wakes.discard(ticket)
