"""Options, and how flags, environment, files and defaults become settings."""
