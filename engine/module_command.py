"""How a module of hip is run in a process of its own."""

import sys

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
