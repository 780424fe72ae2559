"""`hip doctor`: can `hip ask` run here, and what is this machine?

Nothing in here may fail: what can't be found out is a line of the report.
"""

import importlib
import importlib.metadata
import locale
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from hipcli.config.options import CACHE, JSON, MODEL, MODELS_DIR, OUTPUT, TALK
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.engine.errors import HipError
from hipcli.exit_codes import ExitCode
from hipcli.terminal import formatting
from hipcli.terminal.console import Console
from hipcli.terminal.output import columns, show
from hipcli.version import __version__

_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "pypdfium2", "pypdf", "rich")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. Any `fail` means that `hip ask` can't run."""

    name: str
    status: Literal["ok", "note", "fail"]
    detail: str
    hint: str = ""


@takes(MODEL, MODELS_DIR, CACHE, JSON, OUTPUT, TALK)
def doctor(context: typer.Context) -> int:
    """Check whether `hip ask` can run here: versions, processor, memory, disk, model, GPU.

    \b
    hip doctor
    hip doctor --json | jq .ok

    Exits with 0 only if `hip ask` can run.
    """
    settings = Settings.of(context)
    console: Console = context.obj
    with console.libraries_kept_quiet():
        checks = list(_checks(console, settings))
    can_run = all(check.status != "fail" for check in checks)
    width = columns(console, settings)
    text = formatting.table(("CHECK", "STATUS", "WHAT"), map(_row, checks), width=width)
    show(console, settings, text, ok=can_run, checks=[asdict(check) for check in checks])
    return ExitCode.OK if can_run else ExitCode.FAILURE


def _row(check: Check) -> tuple[str, str, str]:
    hint = f" ({check.hint})" if check.hint else ""
    return check.name, check.status, check.detail + hint


def _checks(console: Console, settings: Settings) -> Iterator[Check]:
    python = f"{platform.python_version()} on {platform.platform()}"
    yield Check("hip", "ok", __version__)
    yield Check("python", "ok", python)
    for name in _LIBRARIES:
        yield _library(name)
    yield from _guarded("cpu", _cpu)
    yield from _guarded("memory", _memory)
    yield from _guarded("gpu", _gpu)
    yield from _guarded("cache", lambda: _cache(settings.cache_root))
    yield from _guarded("model", lambda: _model(settings))
    yield from _guarded("locale", lambda: _locale(console))


def _guarded(name: str, check: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """What `check` finds, or why it could not look. A broken library may raise anything."""
    try:
        yield from check()
    except Exception as error:
        yield Check(name, "note", f"could not be checked: {type(error).__name__}: {error}")


def _library(name: str) -> Check:
    try:
        importlib.import_module(name)
        return Check(name, "ok", importlib.metadata.version(name))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return Check(name, "fail", reason, f"reinstall it: pip install --force-reinstall {name}")


def _cpu() -> Iterator[Check]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    vectors = importlib.import_module("torch").backends.cpu.get_cpu_capability()
    name = _cpu_name()
    yield Check("cpu", "ok", f"{name}, {usable} usable cores, vector instructions {vectors}")


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> Iterator[Check]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    detail = f"{formatting.size(available)} available of {formatting.size(total)}"
    yield Check("memory", "ok", detail)
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = limit == resource.RLIM_INFINITY
    locked = "no limit" if unlimited else f"limit {formatting.size(limit)}"
    yield Check("pinned memory", "ok", f"{locked} (ulimit -l), which is not for a GPU's")


def _gpu() -> Iterator[Check]:
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        yield Check("gpu", "note", "none; hip runs on the processor")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield Check(
            f"gpu {index}",
            "ok",
            f"{properties.name}, {formatting.size(properties.total_memory)}, "
            f"compute capability {properties.major}.{properties.minor}, CUDA {torch.version.cuda}",
        )
    try:
        version = importlib.import_module("triton").__version__
        yield Check("triton", "ok", version)
    except Exception as error:
        yield Check("triton", "fail", f"{type(error).__name__}: {error}", "reinstall triton")


def _cache(root: Path) -> Iterator[Check]:
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=root):
            yield Check("cache", "ok", f"{root} is writable")
    except OSError as error:
        hint = "answers still come, but nothing is saved; set HIP_CACHE_DIR"
        yield Check("cache", "note", f"{root}: {error.strerror}", hint)
        return
    yield Check("disk", "ok", f"{formatting.size(shutil.disk_usage(root).free)} free for sessions")


def _model(settings: Settings) -> Iterator[Check]:
    from hipcli.engine.models import resolve

    name = settings.values["model"]
    try:
        folder = resolve(name, models_dir=settings.models_dir)
    except HipError as error:
        yield Check("model", "fail", error.message, error.hint or f"hip models pull {name}")
        return
    yield Check("model", "ok", f"{name} ({folder.format}) at {folder.path}")


def _locale(console: Console) -> Iterator[Check]:
    encoding = getattr(console.stdout, "encoding", None) or "unknown"
    names = f"file names {sys.getfilesystemencoding()}, text {locale.getpreferredencoding(False)}"
    if encoding.lower().replace("-", "") == "utf8":
        yield Check("locale", "ok", f"output {encoding}, {names}")
    else:
        hint = "characters outside it are shown as escapes; JSON and -o stay UTF-8"
        yield Check("locale", "note", f"output {encoding}, {names}", hint)
