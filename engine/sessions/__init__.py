"""Saved contexts on disk."""
