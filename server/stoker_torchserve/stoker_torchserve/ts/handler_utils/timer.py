"""`ts.handler_utils.timer`: times of a handler's steps."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any


def timed(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method of a handler: with `handler: {profile: true}` in the configuration its time is a metric."""

    @functools.wraps(func)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        context = self.context
        config = getattr(context, "model_yaml_config", None) or {}
        if not (config.get("handler") or {}).get("profile"):
            return func(self, *args, **kwargs)
        begun_s = time.perf_counter()
        result = func(self, *args, **kwargs)
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            # The GPU may still compute.
            torch.cuda.synchronize()
        context.metrics.add_time(f"ts_handler_{func.__name__}", 1000 * (time.perf_counter() - begun_s))
        return result

    return wrapper
