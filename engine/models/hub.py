"""The model hub's cache on this machine, and downloads into it.

hip keeps hub models where every other program on the machine looks for them (`HF_HOME` is the
hub client's own setting), so nothing is stored twice. Finding a model never touches the network.
"""

import io
import re
from pathlib import Path
from typing import Any

from hipcli.engine.errors import ModelError
from hipcli.engine.json_object import read_json
from hipcli.engine.models.architectures import check_config
from hipcli.engine.models.folders import ModelFolder, check_folder
from hipcli.engine.models.gguf import Progress

_HUB_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<rev>[\w][\w./-]*))?")
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
# Folders hold other formats of the same weights; "consolidated" files hold them a second time.
_UNWANTED = ["*/*", "consolidated*", "*.bin.index.json"]


def parse_hub_id(name: str) -> tuple[str, str | None] | None:
    """`org/name[@revision]` as its two parts; None for anything else."""
    match = _HUB_ID.fullmatch(name)
    if match is None or ".." in name:
        return None
    return match["id"], match["rev"]


def find_in_cache(name: str, repo_id: str, revision: str | None) -> ModelFolder | None:
    """The model in the hub's cache, without any network; None when it is not there.

    Raises:
        ModelError: it is there, but incomplete or without safetensors.
    """
    # Not needed for aliases and folders, so not at the top.
    import huggingface_hub

    try:
        # Asking for the snapshot instead would call one incomplete that lacks files hip ignores.
        config = huggingface_hub.try_to_load_from_cache(
            repo_id, "config.json", revision=revision or "main"
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot read the hub's cache for {repo_id}: {error}") from error
    if not isinstance(config, str):
        return None
    path = Path(config).parent
    check_folder(path)
    return ModelFolder(name, path, path.name, "safetensors")


def download(name: str, repo_id: str, revision: str | None, progress: Progress) -> ModelFolder:
    """Download a model into the hub's cache.

    Raises:
        ModelError: no network, no such model, no access, or no safetensors in it.
    """
    import huggingface_hub

    progress("download", 0, 0)
    try:
        path = Path(
            huggingface_hub.snapshot_download(
                repo_id,
                revision=revision,
                allow_patterns=_WANTED,
                ignore_patterns=_UNWANTED,
                tqdm_class=_bars(progress),
            )
        )
    except Exception as error:
        # The client raises its own, httpx's and the system's errors, differing by version.
        raise _failure(repo_id, revision, error) from error
    check_folder(path)
    return ModelFolder(name, path, path.name, "safetensors")


def cached_models() -> list[ModelFolder]:
    """Models in the hub's cache that are complete and that hip can run."""
    import huggingface_hub
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = huggingface_hub.scan_cache_dir().repos
    except (CacheNotFound, OSError, ValueError):
        return []
    found = []
    for repo in repos:
        if repo.repo_type != "model":
            continue
        for revision in repo.revisions:
            try:
                check_folder(revision.snapshot_path)
                check_config(read_json(revision.snapshot_path / "config.json"), repo.repo_id)
            except ModelError:
                continue
            found.append(
                ModelFolder(
                    repo.repo_id, revision.snapshot_path, revision.commit_hash, "safetensors"
                )
            )
    return sorted(found, key=lambda model: (model.name, model.revision))


def remove_cached(repo_id: str, revision: str | None) -> bool:
    """Delete a model (one revision, or all) from the hub's cache; False when it is not there."""
    import huggingface_hub
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = huggingface_hub.scan_cache_dir()
    except CacheNotFound:
        return False
    hashes = [
        entry.commit_hash
        for repo in cache.repos
        if repo.repo_type == "model" and repo.repo_id == repo_id
        for entry in repo.revisions
        if revision is None or revision == entry.commit_hash or revision in entry.refs
    ]
    if not hashes:
        return False
    cache.delete_revisions(*hashes).execute()
    return True


def _bars(progress: Progress) -> type:
    """A progress-bar class for the hub's client that reports bytes instead of drawing."""
    from tqdm import tqdm

    class Silent(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            result = super().update(n)
            if self.unit == "B" and self.total:
                progress("download", int(self.n), int(self.total))
            return result

    return Silent


def _failure(repo_id: str, revision: str | None, error: Exception) -> ModelError:
    kind = type(error).__name__
    if kind == "GatedRepoError":
        return ModelError(
            f"{repo_id} asks its users to accept a licence first.",
            hint="Accept it on the model's page and log in with `hf auth login`.",
        )
    if kind in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        return ModelError(
            f"There is no model {repo_id}{f' at {revision}' if revision else ''} on the hub.",
            hint="Check the spelling; a private model needs `hf auth login`.",
        )
    return ModelError(
        f"Cannot download {repo_id}: {kind}: {str(error).splitlines()[0] if str(error) else kind}",
        hint="Check the network, or name a folder or .gguf file that is on this machine.",
    )
