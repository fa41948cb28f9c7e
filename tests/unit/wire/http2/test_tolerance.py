"""How many useless frames a client may send."""

import pytest

from stoker.wire.http2.frames import PATIENCE, RESETS, ConnectionFault
from stoker.wire.http2.tolerance import Tolerance


def test_tolerance_spent_ends_the_connection() -> None:
    """Frames that move nothing and reset streams are counted apart."""
    tolerance = Tolerance()
    for _ in range(PATIENCE):
        tolerance.spend_patience()
    for _ in range(RESETS):
        tolerance.spend_reset()
    with pytest.raises(ConnectionFault, match="move nothing"):
        tolerance.spend_patience()
    with pytest.raises(ConnectionFault, match="reset"):
        tolerance.spend_reset()


def test_restored_tolerance_is_at_least_a_new_connections() -> None:
    """Neither a spent nor a hoarded tolerance lasts."""
    tolerance = Tolerance()
    tolerance.patience, tolerance.resets = 0, 10**9
    tolerance.restore()
    assert tolerance.patience == PATIENCE
    assert RESETS <= tolerance.resets < 10**9
