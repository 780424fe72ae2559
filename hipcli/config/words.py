"""What words of a command line mean that Typer leaves as they are: sizes, ratios, passwords."""

import re
from pathlib import Path

from hipcli.engine.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|[kmgt]i?b?|b)", re.IGNORECASE)


def parse_size(text: str, flag: str) -> int:
    """Bytes in a size such as `2MiB`, `1.5G` or `4096`; units are powers of 1024.

    Args:
        flag: what it was given to, for the error.

    Raises:
        UsageError: anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{flag}: {text!r} is not a size", "write it as 500KiB, 2MiB or 1GiB")
    power = " kmgt".index((match[2].lower() or " ")[0].replace("b", " "))
    return int(float(match[1]) * 1024**power)


def parse_keep(text: str) -> float | None:
    """What `--keep` says: None for auto, 1 for full, or a ratio.

    Raises:
        UsageError: anything else.
    """
    word = text.strip().lower()
    if word in ("auto", "full"):
        return None if word == "auto" else 1.0
    try:
        ratio = float(word)
    except ValueError:
        ratio = 0.0
    if not 0 < ratio <= 1:
        raise UsageError(
            f"--keep: {text!r} is neither full, auto nor a ratio", "write a ratio as 0.25"
        )
    return ratio


def read_password(path: Path | None) -> str | None:
    """The first line of the password file, without its line end; None without a file.

    Raises:
        UsageError: the file cannot be read.
    """
    if path is None:
        return None
    try:
        return path.read_text("utf-8").split("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(
            f"cannot read the password file {path}: {reason}", "check the path"
        ) from error
