"""What can be refused before work begins: settings at odds with each other or the machine.

Nothing here loads torch, so that a mistake in a command line is told at once.
"""

import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hipcli.config.settings import Settings
from hipcli.engine.errors import NotCachedError, UsageError
from hipcli.runs.ranks import Ranks

if TYPE_CHECKING:
    from hipcli.documents import Corpus
    from hipcli.runs.jobs import Job

# What the drivers that PyTorch calls "cuda" leave in /dev: NVIDIA's, on a Jetson and under WSL
# too, and AMD's.
_GPU_FILES = ("nvidiactl", "nvhost-ctrl-gpu", "nvgpu", "dxg", "kfd")
_DEVICES = Path("/dev")


def check_settings(settings: Settings) -> None:
    """Refuses what no run of the engine could do.

    Raises:
        UsageError: an unknown method or setting, a device that is not here, options that exclude
            one another, a password file that cannot be read.
    """
    from hipcli.engine.methods import make_config

    config = settings.engine_config()
    if not config.model.strip():
        raise UsageError("--model is empty", "leave it out, or name one; hip models list has them")
    make_config(config.method, config.method_settings)
    if settings.values.get("rounds") == 0 and settings.values["answer"] != "attend":
        raise UsageError(
            "--rounds 0 goes with --answer attend only: the other modes answer from passages",
            "add --answer attend, or give --rounds 1 or more",
        )
    settings.generation_config()
    settings.cache_config()
    check_reading(settings)
    if config.weights == "int8" and config.device.startswith("cuda"):
        raise UsageError(
            f"--weights int8 is for processors, and --device {config.device} was given",
            "leave one of the two out",
        )
    check_kv_dtype(config.kv_dtype, config.device)
    check_device(config.device)
    check_ranks(settings)


def check_batch(
    settings: Settings, jobs: Sequence["Job"], resume: str | None, cluster: str | None
) -> None:
    """Refuses what the jobs of a batch cannot have together.

    Raises:
        UsageError: sources and a session, one name for many sessions, or what a cluster
            cannot have: a session, or one engine of many GPUs; many sets of documents there.
    """
    own = [job for job in jobs if job.sources is not None]
    if own and resume is not None:
        raise UsageError(
            f"line {own[0].line} of --batch has its own sources, and --resume reads nothing anew",
            "leave --resume out",
        )
    if own and settings.values["name"]:
        raise UsageError(
            "--name is for one session, and the lines of --batch have sources of their own",
            "leave --name out",
        )
    ranks = Ranks.of(settings)
    if cluster is not None and ranks is not None:
        raise UsageError(
            "--cluster gives each worker an engine, and --gpus makes several GPUs one engine",
            "give one of them",
        )
    if ranks is not None and len({job.sources for job in jobs}) > 1:
        raise UsageError(
            "the lines of --batch name several sets of documents, and --gpus reads one in a run",
            "leave --gpus out, or ask about each set by itself",
        )
    if cluster is not None and resume is not None:
        raise UsageError(
            "--cluster spreads documents over workers, and a session is one",
            "leave --cluster out, or name the documents",
        )


def check_reading(settings: Settings) -> None:
    """Refuses options of reading documents that cannot be used as given.

    Raises:
        UsageError: as `check_settings`.
    """
    if settings.values["null"] and settings.values["files_from"] is None:
        raise UsageError(
            "-0 is about the list of --files-from, which is not there", "add --files-from FILE"
        )
    settings.read_options(None)


def require_session(cache_root: Path, corpus: "Corpus") -> None:
    """Refuses documents that no session is about, before a model is loaded for nothing.

    Raises:
        NotCachedError: there is no such session.
    """
    from hipcli.engine.sessions import SessionStore

    wanted = [(document.name, document.sha256) for document in corpus.documents]
    for record in SessionStore(cache_root).list():
        told = [(entry["name"], entry["sha256"]) for entry in record.inputs]
        if record.complete and told == wanted:
            return
    raise NotCachedError(
        "no saved session is about these documents as they are now",
        "ask once without --cached-only, or see: hip sessions list",
    )


def check_device(device: str) -> None:
    """Refuses `cuda` where there is no GPU or no PyTorch for one, as far as a glance can tell.

    Raises:
        UsageError: the device is surely not to be had.
    """
    if not device.startswith("cuda"):
        return
    reason = _why_no_gpu()
    if reason:
        hint = "use --device cpu, or auto; hip doctor shows what is here"
        raise UsageError(f"--device {device}: {reason}", hint)


def check_kv_dtype(kv_dtype: str, device: str) -> None:
    """Refuses 8-bit keys and values of the other kind of device, as far as a glance can tell.

    Raises:
        UsageError: the model will surely run where they are not to be had.
    """
    if kv_dtype == "auto":
        return
    if kv_dtype == "int8":
        if device.startswith("cuda"):
            raise UsageError(
                f"--kv-dtype int8 is for processors, and --device {device} was given",
                "use --kv-dtype fp8_e4m3, or leave one of the two out",
            )
        return
    reason = "" if device.startswith("cuda") else "--device cpu was given"
    if reason and device == "auto":
        reason = _why_no_gpu()
    if reason:
        raise UsageError(
            f"--kv-dtype {kv_dtype} needs a GPU, and {reason}",
            "use --kv-dtype int8, or leave it at auto",
        )


def check_ranks(settings: Settings) -> None:
    """Refuses what several processes cannot do, as far as a glance can tell.

    Raises:
        UsageError: more GPUs than this machine surely has, or a method of one device.
    """
    from hipcli.engine.methods import check_sharded

    values, ranks = settings.values, Ranks.of(settings)
    if ranks is None:
        return
    check_sharded(values["method"])
    if values["device"] != "cpu" and (reason := _why_no_gpu()):
        raise UsageError(
            f"{ranks.size} GPUs are wanted: {reason}",
            f"--device cpu runs the {ranks.size} processes on its processors",
        )
    keep = settings.cache_config().keep
    if values["no_cache"] and keep is not None and keep < 1:
        raise UsageError(
            "--keep with --no-cache does not go with several GPUs", "leave out one of them"
        )


def _why_no_gpu() -> str:
    """Why there is surely no GPU to be had; empty where a glance cannot tell."""
    if sys.platform == "darwin":
        return "there is no CUDA on a Mac"
    if sys.platform == "linux" and not any((_DEVICES / name).exists() for name in _GPU_FILES):
        return "this machine has no GPU"
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return f"PyTorch {version} was built without GPU support" if version.endswith("+cpu") else ""
