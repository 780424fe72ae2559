"""Which version of hip was timed."""

import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def commit() -> str:
    """Short hash of the checkout, or "unknown" outside one."""
    done = subprocess.run(
        ["git", "-C", str(FOLDER), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"
