"""How a reader says that an input gives no text."""

from typing import Literal


class Refusal(Exception):
    """Nothing can be read from this input; the caller turns it into a `Document` without text.

    Args:
        code: a stable word, such as "empty" or "pdf_password".
        reason: what is wrong, without the name of the input.
        hint: what the user can do; may be empty.
        status: "skipped" for what hip does not read, "failed" for what it tried to and could not.
        kind: what the input turned out to be, where that differs from what it looked like.
    """

    def __init__(
        self,
        code: str,
        reason: str,
        hint: str = "",
        status: Literal["skipped", "failed"] = "failed",
        kind: str = "",
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.hint = hint
        self.status = status
        self.kind = kind
