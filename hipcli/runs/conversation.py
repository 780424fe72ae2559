"""Turns of a conversation that a session keeps: what was asked and answered with `--continue`.

Turns are kept as text beside the context and read again with each question. They are few tokens
beside the documents, whose keys and values stay as they are, so a branch of the session can go on
in its own way.
"""

from typing import TYPE_CHECKING

from hipcli.engine.errors import HipError, SessionError

if TYPE_CHECKING:
    from hipcli.engine.sessions import SessionRecord, SessionStore

# (question, answer)
Turn = tuple[str, str]
_KEY = "turns"


def turns_of(record: "SessionRecord") -> tuple[Turn, ...]:
    """The turns a session keeps, the first one first."""
    return tuple((question, answer) for question, answer in record.extra.get(_KEY, ()))


def as_record(turns: tuple[Turn, ...]) -> dict[str, list[list[str]]]:
    """What a session remembers of them, as plain data."""
    return {_KEY: [list(turn) for turn in turns]}


def keep(
    store: "SessionStore",
    session_id: str,
    turns: tuple[Turn, ...],
    turn: Turn,
    resumed: bool = False,
) -> str:
    """Let a session keep one more turn.

    Args:
        store: the sessions.
        session_id: of the one that was asked; empty if nothing was saved.
        turns: those that the question was asked after.
        turn: the new one.
        resumed: the question goes on from a session as it was; otherwise one asked after no others
            begins a new conversation in place of an older one.

    Returns:
        Why it is not kept, in words; empty if it is.
    """
    if not session_id:
        return "nothing is saved"
    try:
        record = store.find(session_id)
        with store.lock(record.key):
            before = turns_of(store.find(session_id))
            if (turns or resumed) and before and before != turns:
                return "another question was kept meanwhile"
            store.remember(record, as_record((*turns, turn)))
    except (OSError, SessionError) as error:
        return error.message if isinstance(error, HipError) else str(error.strerror or error)
    return ""
