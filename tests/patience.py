"""How long tests wait for what has to come.

Such a limit is there only so that a test which waits for what never comes ends, and says what it waited for. It says
nothing of how fast anything is: on a machine that is slow and does other things too it must not run out.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PATIENCE_S", "PROGRAM_S"]

PATIENCE_S: Final = 50.0
"""For what somebody who runs already is to do.

Shorter than the minute after which a server gives up by itself what a script holds, or a caller does not go on with:
who waited longer would see that, and take it for what has to happen at once.
"""
PROGRAM_S: Final = 300.0
"""For a program that has to start, do its work and end."""
