"""The memory that large bodies of requests may take together while they are received and scored, shared by caller.

What has arrived is counted, not what was announced. A caller may hold at most so many times what is free beside it,
so no caller can take all, and who comes later finds room: the rule by which switches divide the memory of their
queues (dynamic thresholds). What a caller has announced counts only where that caller announces more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from ipaddress import IPv6Address, ip_address
from types import TracebackType
from typing import Final, NamedTuple, Self

from stoker.errors import Overloaded

__all__ = ["LARGE_BODY_BYTES", "Allowance", "BodyBudget", "Caller", "least_budget_bytes"]

LARGE_BODY_BYTES: Final = 1 << 20
"""Bodies up to this size are not counted: what a connection may send unasked is as large."""

_OF_A_KEY: Final = 4
_OF_AN_ADDRESS: Final = 2
"""How many times what stays free the holders of one key may have, and those at one address."""


def least_budget_bytes(body_bytes: int) -> int:
    """The smallest budget that has room for a body of this size, if there is no other."""
    return _in_steps(body_bytes) * (_OF_AN_ADDRESS + 1) // _OF_AN_ADDRESS


class Caller(NamedTuple):
    """Who shares the budget.

    Attributes:
        key: What the caller proves to know; None where nobody needs to.
        network: Where the caller is: an address, or the network of an IPv6 host.
    """

    key: Hashable
    network: str

    @classmethod
    def at(cls, address: str, key: Hashable = None) -> Self:
        """The caller with this key at an address; a host of IPv6 has as many as it likes of one network."""
        try:
            parsed = ip_address(address)
        except ValueError:
            return cls(key, address)
        if isinstance(parsed, IPv6Address):
            if parsed.ipv4_mapped is not None:
                return cls(key, str(parsed.ipv4_mapped))
            return cls(key, str(IPv6Address(int(parsed) >> 64 << 64)))
        return cls(key, str(parsed))


class _Share:
    """What one sharer has.

    Attributes:
        factor: How many times what stays free it may have.
        held_bytes: What has arrived of its bodies.
        claimed_bytes: What they will have when all that was announced has arrived.
    """

    __slots__ = ("claimed_bytes", "factor", "held_bytes")

    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.held_bytes = self.claimed_bytes = 0


class BodyBudget:
    """What the large bodies of one frontend may add up to.

    Attributes:
        total_bytes: That.
        held_bytes: What they take now.
    """

    def __init__(self, total_bytes: int = 1 << 30) -> None:
        self.total_bytes = total_bytes
        self.held_bytes = 0
        self._shares: dict[Hashable, _Share] = {}

    @property
    def left_bytes(self) -> int:
        """What is free."""
        return self.total_bytes - self.held_bytes

    def announce(self, caller: Caller, size_bytes: int) -> bool:
        """Note that so much is going to arrive; False if it would not fit once all of this caller's has."""
        for share in self._shares_of(caller):
            claimed = share.claimed_bytes + size_bytes
            if claimed > share.factor * (self.left_bytes + share.held_bytes - claimed):
                return False
        self._change(caller, 0, size_bytes)
        return True

    def take(self, caller: Caller, size_bytes: int, unannounced_bytes: int) -> bool:
        """Take memory for what arrives; False if the caller has too much for what would stay free.

        Args:
            caller: Whose it is.
            size_bytes: How much.
            unannounced_bytes: How much of that was not announced.
        """
        left = self.left_bytes - size_bytes
        if any(share.held_bytes + size_bytes > share.factor * left for share in self._shares_of(caller)):
            return False
        self._change(caller, size_bytes, unannounced_bytes)
        return True

    def release(self, caller: Caller, held_bytes: int, claimed_bytes: int) -> None:
        """Give back what a body held, and what it claimed, which is not less."""
        self._change(caller, -held_bytes, -claimed_bytes)

    def _shares_of(self, caller: Caller) -> list[_Share]:
        factors = _factors(caller)
        return [self._shares.get(name) or _Share(factor) for name, factor in factors]

    def _change(self, caller: Caller, held_bytes: int, claimed_bytes: int) -> None:
        self.held_bytes += held_bytes
        for name, factor in _factors(caller):
            share = self._shares.setdefault(name, _Share(factor))
            share.held_bytes += held_bytes
            share.claimed_bytes += claimed_bytes
            if not share.claimed_bytes:
                del self._shares[name]


def _factors(caller: Caller) -> tuple[tuple[Hashable, int], ...]:
    """Who shares with whom: the networks of a key share what the key may have."""
    place = (caller, _OF_AN_ADDRESS)
    return (place,) if caller.key is None else (place, ((caller.key,), _OF_A_KEY))


class Allowance:
    """What one request takes from the budget, until its context is left."""

    def __init__(self, budget: BodyBudget, find_caller: Callable[[], Caller]) -> None:
        """Begin with nothing.

        Args:
            budget: The budget.
            find_caller: Finds out who sends the request; called only if its body is large.
        """
        self._budget = budget
        self._find_caller = find_caller
        self._caller: Caller | None = None
        self._held_bytes = 0
        self._claimed_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def announce(self, size_bytes: int) -> None:
        """Ask whether there is room for a body of this size, before any of it has arrived; once for each.

        Raises:
            Overloaded: There is none for one more of this caller's.
        """
        if size_bytes <= LARGE_BODY_BYTES:
            return
        claimed = _in_steps(size_bytes)
        if not self._budget.announce(self._found_caller(), claimed):
            raise _no_room()
        self._claimed_bytes = claimed

    def cover(self, size_bytes: int) -> None:
        """Make sure that so much of the body is covered; small ones are by themselves.

        Raises:
            Overloaded: There is no room for it. What was covered stays so.
        """
        if size_bytes <= max(LARGE_BODY_BYTES, self._held_bytes):
            return
        # In whole steps, so that a body that grows piece by piece does not come here with each of them.
        held = _in_steps(size_bytes)
        claimed = max(held, self._claimed_bytes)
        if not self._budget.take(
            self._found_caller(), held - self._held_bytes, claimed - self._claimed_bytes
        ):
            raise _no_room()
        self._held_bytes, self._claimed_bytes = held, claimed

    def release(self) -> None:
        """Give all of it back."""
        if self._claimed_bytes:
            self._budget.release(self._found_caller(), self._held_bytes, self._claimed_bytes)
            self._held_bytes = self._claimed_bytes = 0

    def _found_caller(self) -> Caller:
        if self._caller is None:
            self._caller = self._find_caller()
        return self._caller


def _in_steps(size_bytes: int) -> int:
    return -(-size_bytes // LARGE_BODY_BYTES) * LARGE_BODY_BYTES


def _no_room() -> Overloaded:
    return Overloaded("Too many large request bodies are being received.", retry_after_s=1)
