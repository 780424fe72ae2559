"""The seam to the engine: fetching the default model when it is missing, and opening an engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.config.options import DEFAULT_MODEL, process_environment
from hipcli.engine.config import EngineConfig
from hipcli.engine.errors import ModelError
from hipcli.engine.threads import prepare_threads, quiet_transport
from hipcli.runs.ranks import Ranks
from hipcli.terminal.console import Console
from hipcli.terminal.progress import ProgressView

if TYPE_CHECKING:
    from hipcli.engine.engine import Engine
    from hipcli.engine.models import ModelFolder
    from hipcli.engine.request import AskRequest


def open_engine(
    console: Console, config: EngineConfig, view: ProgressView, ranks: Ranks | None = None
) -> "Engine":
    """The engine for `config`; a missing default model is fetched first, and the user is told.

    Args:
        ranks: the processes it runs on, where there are several; the engine is to be closed.
    """
    environment = process_environment()
    prepare_threads(environment)
    if ranks is not None:
        quiet_transport(environment)
    ensure_model(console, config, view)
    view.phase("load")
    if ranks is not None:
        from hipcli.engine.distributed.engine import DistributedEngine

        return DistributedEngine.over(config, ranks.crew(), ranks.placement)
    from hipcli.engine.engine import Engine

    return Engine.open(config)


def ensure_model(console: Console, config: EngineConfig, view: ProgressView) -> None:
    """Fetches the default model if it isn't here; any other missing model is an error.

    Raises:
        ModelError: the model isn't here and isn't the default one, or could not be fetched.
    """
    from hipcli.engine.models import resolve

    try:
        resolve(config.model, models_dir=config.models_dir)
    except ModelError:
        if config.model != DEFAULT_MODEL:
            raise
        console.note(f"the model {config.model} is not here yet; fetching it, this happens once")
        fetch(console, config.model, config.models_dir, view)


def require_model(config: EngineConfig) -> None:
    """Refuses a model that is missing and is not fetched unasked; a look at folders, no more.

    Raises:
        ModelError: the model isn't here and isn't the default one.
    """
    from hipcli.engine.models import resolve

    if config.model != DEFAULT_MODEL:
        resolve(config.model, models_dir=config.models_dir)


def fetch(console: Console, name: str, models_dir: Path, view: ProgressView) -> "ModelFolder":
    """Fetches `name` while `view` shows how much of it has arrived."""
    from hipcli.engine.models import pull

    view.phase(f"fetching {name}")
    with console.libraries_kept_quiet():
        return pull(
            name,
            models_dir=models_dir,
            progress=lambda phase, done, total: view.fetching(name, phase, done, total),
        )


def make_request(digests: Sequence[tuple[str, str]], **fields: Any) -> "AskRequest":
    """A request to the engine; `fields` are those of `AskRequest` but for `inputs`."""
    from hipcli.engine.request import AskRequest, InputRecord

    return AskRequest(inputs=tuple(InputRecord(*digest) for digest in digests), **fields)
