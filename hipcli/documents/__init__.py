"""Bytes to documents: one reader per kind of file."""
