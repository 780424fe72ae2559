"""What makes two contexts the same: a SHA-256 over a tagged record of all that shapes the KV.

A wrong hit is the worst fault of a cache, so whatever could change a key or a value is in the
record, and anything unknown is a difference.
"""

import hashlib
import json
from typing import Any

# Version of the files of a session. A newer one is refused, an older one is a miss.
FORMAT_VERSION = 3

# Raise when the arithmetic changes what is stored.
ENGINE_VERSION = 3


# Told to people, no part of the identity: the same weights under another name are the same, and
# what a CPU reads serves a GPU, whose numbers for what is left to the device are others.
LABELS = ("model_name", "read_with")


def identity_key(record: dict[str, Any]) -> str:
    """`session_key` of a record without its labels."""
    return session_key({name: value for name, value in record.items() if name not in LABELS})


def session_key(record: dict[str, Any]) -> str:
    """SHA-256 of the record in canonical JSON: sorted keys, no spaces, ASCII.

    Args:
        record: JSON values only. Lists and fields keep their borders, so moving text from one
            field to the next gives another key.

    Returns:
        64 hex digits.
    """
    tagged = {"hip-session": FORMAT_VERSION, "engine": ENGINE_VERSION, "record": record}
    text = json.dumps(tagged, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
