"""The memory budget of large request bodies in one frontend, shared by caller (decision 25).

Bytes that have arrived are counted, not those that were announced. A caller may hold at most a fixed multiple of the
memory that is still free, so no caller can take all of it, and later callers find room. Switches divide buffer memory
among queues by the same rule (dynamic thresholds). What a caller has announced counts only when the same caller
announces more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from ipaddress import IPv6Address, ip_address
from types import TracebackType
from typing import Final, NamedTuple, Self

from stoker.errors import Overloaded

LARGE_BODY_BYTES: Final = 1 << 20
"""Bodies up to this size are not counted: a connection may send as much at any time."""

_OF_A_KEY: Final = 4
_OF_AN_ADDRESS: Final = 2
"""How many times the free memory the callers with one key may hold, and those at one address."""


class Caller(NamedTuple):
    """The unit by which the budget is shared: a key, where one is needed, and an address or /64 network."""

    key: Hashable
    network: str

    @classmethod
    def at(cls, address: str, key: Hashable = None) -> Self:
        """The caller with this key at an address; of IPv6 the /64 network, whose addresses one host may have."""
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
    """The memory of one caller, or of one key.

    Attributes:
        factor: How many times the free memory it may hold.
        held_bytes: The bytes of its bodies that have arrived.
        claimed_bytes: The size of its bodies when all that was announced has arrived.
    """

    __slots__ = ("claimed_bytes", "factor", "held_bytes")

    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.held_bytes = self.claimed_bytes = 0


class BodyBudget:
    """The memory that the large bodies of one frontend may take together."""

    def __init__(self, total_bytes: int = 1 << 30) -> None:
        self.total_bytes = total_bytes
        self.held_bytes = 0
        self._shares: dict[Hashable, _Share] = {}

    @property
    def left_bytes(self) -> int:
        """The memory that is free."""
        return self.total_bytes - self.held_bytes

    def announce(self, caller: Caller, size_bytes: int) -> bool:
        """Announce that a body of this size will arrive.

        False if it would not fit beside the other bodies that this caller has announced.
        """
        for share in self._shares_of(caller):
            claimed = share.claimed_bytes + size_bytes
            if claimed > share.factor * (self.left_bytes + share.held_bytes - claimed):
                return False
        self._change(caller, 0, size_bytes)
        return True

    def reserve(self, caller: Caller, size_bytes: int, unannounced_bytes: int) -> bool:
        """Reserve memory for bytes that have arrived; False if the caller would hold too much of what stays free."""
        left = self.left_bytes - size_bytes
        if any(share.held_bytes + size_bytes > share.factor * left for share in self._shares_of(caller)):
            return False
        self._change(caller, size_bytes, unannounced_bytes)
        return True

    def release(self, caller: Caller, held_bytes: int, claimed_bytes: int) -> None:
        """Release the memory that a body held, and the memory that it had claimed, which is at least as much."""
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
    """Return factors by sharer: the networks of a key share what the key may hold."""
    place = (caller, _OF_AN_ADDRESS)
    return (place,) if caller.key is None else (place, ((caller.key,), _OF_A_KEY))


class Allowance:
    """The memory that one request takes from the budget, until the context is left."""

    def __init__(self, budget: BodyBudget, find_caller: Callable[[], Caller]) -> None:
        """Begin with no memory; `find_caller` is called only if the body is large."""
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
        """Reserve room for a body before any of it arrives, or raise Overloaded; called once per request."""
        if size_bytes <= LARGE_BODY_BYTES:
            return
        claimed = _in_steps(size_bytes)
        if not self._budget.announce(self._found_caller(), claimed):
            raise _no_room()
        self._claimed_bytes = claimed

    def cover(self, size_bytes: int) -> None:
        """Reserve memory for this much of the body, of small ones none; raise Overloaded if there is no room."""
        if size_bytes <= max(LARGE_BODY_BYTES, self._held_bytes):
            return
        # In steps, so that a growing body does not reserve memory for each piece.
        held = _in_steps(size_bytes)
        claimed = max(held, self._claimed_bytes)
        if not self._budget.reserve(
            self._found_caller(), held - self._held_bytes, claimed - self._claimed_bytes
        ):
            raise _no_room()
        self._held_bytes, self._claimed_bytes = held, claimed

    def release(self) -> None:
        """Release everything."""
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
