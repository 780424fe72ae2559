"""Saved contexts on disk."""

from hipcli.engine.sessions.store import SessionRecord, SessionStore

__all__ = ["SessionRecord", "SessionStore"]
