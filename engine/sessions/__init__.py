"""Saved contexts on disk."""

from hipcli.engine.sessions.record import SessionRecord
from hipcli.engine.sessions.store import SessionStore

__all__ = ["SessionRecord", "SessionStore"]
