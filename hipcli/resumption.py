"""What a resumed session keeps of its settings, and what is told when others are asked for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hipcli.report import warning_row
from hipcli.settings import Settings

if TYPE_CHECKING:
    from hipcli.engine.sessions import SessionRecord

# A resumed session keeps these as they were unless the command line says otherwise: its keys and
# values hold for no others.
KEPT_SETTINGS = (
    "model",
    "dtype",
    "method",
    "budget_tokens",
    "window_tokens",
    "sink_tokens",
    "system",
    "context_limit",
    "fit",
    "encoding",
)
# Other values of these make keys and values anew.
_SHAPING_SETTINGS = KEPT_SETTINGS[:6]


def kept_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `values` that a session keeps."""
    return {name: values[name] for name in KEPT_SETTINGS}


def differences(record: "SessionRecord", settings: Settings) -> list[dict[str, str]]:
    """Warnings: other settings on the command line than the session was read with."""
    kept: dict[str, Any] = record.extra.get("settings", {})
    values = settings.values
    differing = [name for name in kept if name in values and values[name] != kept[name]]
    rows = []
    shaping = [
        f"{name} {kept[name]} -> {values[name]}" for name in differing if name in _SHAPING_SETTINGS
    ]
    if shaping:
        what = f"other settings than session {record.id} was read with ({', '.join(shaping)})"
        rows.append(warning_row("other_session", f"{what}: its text is read anew for them"))
    if "system" in differing:
        what = f"session {record.id} keeps the system prompt it was read with"
        rows.append(warning_row("system_kept", what))
    return rows
