"""Errors of training runs, which the operator can fix."""

from stoker.errors import OperatorError


class UnknownRun(OperatorError):
    """No training run has this id, or several could be meant."""

    code = "unknown_run"


class SubmissionRefused(OperatorError):
    """A training run cannot be started, continued or ended as requested; nothing was changed."""

    code = "submission_refused"


class RunFailed(OperatorError):
    """An awaited training run has failed or was cancelled; the message has its error."""

    code = "run_failed"
    exit_code = 1
