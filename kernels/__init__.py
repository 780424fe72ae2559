"""The arithmetic: pure tensor functions. No config, no cache object, no model."""
