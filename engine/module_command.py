"""How a module of hip, or another program, is run in a process of its own."""

import subprocess
import sys
from collections.abc import Sequence

# `python -m` and `python -c` look for modules in the current folder first, which may be one that
# the user is reading: a `torch.py` in it would be run.
SAFE_PATH = "import sys; sys.path[:] = [folder for folder in sys.path if folder]"
_RUN = f"""{SAFE_PATH}
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def module_command(module: str, *words: str) -> list[str]:
    """A command line that runs `module` with `words`, importing nothing from the current folder."""
    return [sys.executable, "-c", _RUN, module, *words]


def listened_to(command: Sequence[str]) -> subprocess.Popen[str]:
    """A process without input; what it says, errors among it, is read line by line as text."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
