"""From the name a user typed to a model folder on this machine. Never downloads."""

import re
from pathlib import Path

from hipcli.engine.errors import ModelError
from hipcli.engine.models import hub
from hipcli.engine.models.aliases import ALIASES, Alias
from hipcli.engine.models.folders import ModelFolder, check_folder, read_manifest
from hipcli.engine.models.gguf import Progress, converted, no_progress
from hipcli.engine.nearest import nearest

# Folder names hip gives to converted models.
_MADE_HERE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


def resolve(name: str, *, models_dir: Path, progress: Progress = no_progress) -> ModelFolder:
    """Find a model that is already here.

    Args:
        name: an alias; a `.gguf` file, converted on first use (half a minute and more, told
            through `progress`); a folder with safetensors; or `org/name[@revision]` in the hub's
            cache. An alias wins over a folder of the same name: write `./smollm2` for the folder.
        models_dir: where hip keeps converted models.

    Raises:
        ModelError: not found, with what to do; or found and unusable.
    """
    if name in ALIASES:
        return _alias(ALIASES[name], models_dir)
    path = existing_path(name)
    if path is not None:
        if path.is_file():
            return _file(path, name, models_dir, progress)
        check_folder(path)
        return read_manifest(path) or ModelFolder(name, path.resolve(), "local", "safetensors")
    if _MADE_HERE.fullmatch(name):
        made_here = read_manifest(models_dir / name)
        if made_here is not None:
            return made_here
    hub_id = hub.parse_hub_id(name)
    if hub_id is not None and not name.endswith(".gguf"):
        found = hub.find_in_cache(name, *hub_id)
        if found is not None:
            return found
        raise ModelError(
            f"The model {name} is not on this machine.", hint=f"Run: hip models pull {name}"
        )
    close = nearest(name, ALIASES)
    use = f"Use {', '.join(ALIASES)}, an org/name of the hub, a folder, or a .gguf file."
    raise ModelError(
        f"There is no model {name!r}: no alias, file or folder of that name.",
        hint=f"Did you mean {close!r}?" if close else use,
    )


def existing_path(name: str) -> Path | None:
    """The file or folder of that name, None when there is none."""
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        # Too long, a null byte, or a home folder nobody has.
        return None


def _alias(alias: Alias, models_dir: Path) -> ModelFolder:
    found = read_manifest(models_dir / alias.name)
    if found is not None and found.revision == alias.revision:
        check_folder(found.path)
        return found
    cached = hub.find_in_cache(alias.name, alias.hub_id, None)
    if cached is not None:
        return cached
    raise ModelError(
        f"The model {alias.name} is not on this machine yet.",
        hint=f"Run: hip models pull {alias.name}",
    )


def _file(path: Path, name: str, models_dir: Path, progress: Progress) -> ModelFolder:
    if path.suffix.lower() == ".gguf":
        return converted(path, name, models_dir, progress)
    if path.suffix.lower() == ".safetensors":
        raise ModelError(
            f"{path} is one file of a model.", hint=f"Name its folder: {path.parent or '.'}"
        )
    raise ModelError(
        f"{path} is not a model hip can read.", hint="Name a folder with safetensors, or a .gguf."
    )
