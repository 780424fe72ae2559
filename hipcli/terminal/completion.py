"""What a shell completes besides commands and options: sessions, models, methods on this machine.

Looked up in folders alone, without torch; whatever goes wrong completes to nothing, since a shell
has no place to show an error.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from hipcli.config.options import DEFAULT_MODEL, default_cache_dir


def sessions(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids and names of saved sessions that begin so, with what they are about."""
    found = []
    with suppress(Exception):
        from hipcli.engine.sessions import SessionStore

        for record in SessionStore(_cache_root(context)).list():
            about = ", ".join(entry["name"] for entry in record.inputs)
            found += [(key, about) for key in (record.name, record.id) if key]
    return [entry for entry in found if entry[0].startswith(incomplete)]


def models(context: typer.Context, incomplete: str) -> list[str]:
    """Names of models on this machine that begin so, and the default one's."""
    found = {DEFAULT_MODEL}
    with suppress(Exception):
        from hipcli.engine.models import installed

        folder = context.params.get("models_dir") or _cache_root(context) / "models"
        found |= {model.name for model in installed(Path(folder))}
    return sorted(name for name in found if name.startswith(incomplete))


def methods(incomplete: str) -> list[tuple[str, str]]:
    """Attention methods that begin so, with what they do."""
    from hipcli.engine.methods import METHODS

    found: Any = METHODS.items()
    return [(name, row.summary) for name, row in found if name.startswith(incomplete)]


def _cache_root(context: typer.Context) -> Path:
    return Path(context.params.get("cache_dir") or default_cache_dir())
