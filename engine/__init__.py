"""The model: runner, KV store, attention methods, sessions.

Tokens in, tokens out; no terminal, no path that a user typed.
"""
