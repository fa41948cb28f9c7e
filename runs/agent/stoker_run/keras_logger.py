"""A Keras callback that logs what `fit` reports, for each Keras that there was: it imports none."""

from typing import Any, Dict, Optional

__all__ = ["KerasLogger"]


class KerasLogger:
    """Logs the metrics of each epoch, with the epoch as the step: `model.fit(…, callbacks=[KerasLogger()])`.

    Args:
        run: The run; by default that of this process.
        batches: Also log each so many batches, under `batch_NAME`; 0 logs none.
    """

    # Each Keras asks its callbacks for some of these.
    async_safe = True
    _supports_tf_logs = False
    _chief_worker_only = False

    def __init__(self, run: Any = None, batches: int = 0) -> None:
        if run is None:
            from stoker_run.current_run import current

            run = current()
        self._run = run
        self._batches = batches
        self._seen_batches = 0
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

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """Log the batch's metrics, of each so many."""
        self._seen_batches += 1
        if self._batches and self._seen_batches % self._batches == 0:
            for name, value in (logs or {}).items():
                if name not in ("batch", "size"):
                    self._run.log(f"batch_{name}", value, step=self._seen_batches)

    def on_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        """Do the same under the name of before."""

    def _implements_train_batch_hooks(self) -> bool:
        return self._batches > 0

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
