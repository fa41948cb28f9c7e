"""A Keras callback that logs what `fit` reports, for each Keras that there was: it imports none."""

from typing import Any, Dict, Optional


class KerasLogger:
    """Logs the metrics of each epoch, with the epoch as the step: `model.fit(…, callbacks=[KerasLogger()])`.

    Args:
        run: The run; by default that of this process.
    """

    # Each Keras asks its callbacks for some of these.
    async_safe = True
    _supports_tf_logs = False
    _chief_worker_only = False

    def __init__(self, run: Any = None) -> None:
        if run is None:
            from stoker_run.current_run import current

            run = current()
        self._run = run
        self.model: Any = None
        self.params: Dict[str, Any] = {}

    def set_model(self, model: Any) -> None:
        """Take the model that is fitted."""
        self.model = model

    def set_params(self, params: Dict[str, Any]) -> None:
        """Take the arguments of `fit`."""
        self.params = params

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """Log the epoch's metrics."""
        for name, value in (logs or {}).items():
            self._run.log(name, value, step=epoch)

    def __getattr__(self, name: str) -> Any:
        """Everything else that Keras tells its callbacks is of no interest."""
        if name.startswith("on_"):
            return _nothing
        if name.startswith("_implements_"):
            return _no
        raise AttributeError(name)


def _nothing(*_arguments: Any, **_keywords: Any) -> None:
    """Do nothing."""


def _no() -> bool:
    return False
