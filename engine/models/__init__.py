"""Models: finding, pulling, converting and loading them.

    folder = resolve("smollm2", models_dir=...)     # never downloads
    folder = pull("smollm2", models_dir=..., progress=...)
    loaded = load(folder, device="auto", dtype="auto")

Importing this package imports neither torch nor transformers nor the hub's client.
"""

from hipcli.engine.models.folders import ModelFolder
from hipcli.engine.models.loading import LoadedModel, load, pick_device, pick_dtype
from hipcli.engine.models.pulling import installed, pull, remove
from hipcli.engine.models.resolving import resolve
from hipcli.engine.models.weights import config_digest, digest

__all__ = [
    "LoadedModel",
    "ModelFolder",
    "config_digest",
    "digest",
    "installed",
    "load",
    "pick_device",
    "pick_dtype",
    "pull",
    "remove",
    "resolve",
]
