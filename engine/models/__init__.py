"""Loading and pulling models."""
