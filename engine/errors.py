"""Errors a user can act on: what happened, the value, what to do.

Everything under `hipcli.engine` raises a subclass of `HipError` for what a user or the machine did;
`hipcli/app.py` alone catches them and maps `code` to an exit code.
"""


class HipError(Exception):
    """Base of all errors with a message for the user.

    Args:
        message: what happened, with the value.
        hint: what to do about it; may be empty.
    """

    code = "failure"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(HipError):
    """A flag or argument that cannot be used as given."""

    code = "usage"


class InputError(HipError):
    """Documents that cannot be used: missing, encrypted, without text, everything skipped."""

    code = "input_unusable"


class ModelError(HipError):
    """A model that is unknown, incomplete, or of an architecture hip does not run."""

    code = "model"


class DoesNotFitError(HipError):
    """More tokens or bytes than the model, the memory or the limits allow."""

    code = "does_not_fit"


class NotCachedError(HipError):
    """`--cached-only` was given and no saved session matches."""

    code = "not_cached"


class SessionError(HipError):
    """A session that is unknown, ambiguous, damaged, or written by a newer version."""

    code = "session"


class DamagedSessionError(SessionError):
    """A session whose files do not hold what was written to them."""
