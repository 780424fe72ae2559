"""`hip` and `python -m hipcli`: the process around the program, nothing else."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs `hip` on this process's arguments and streams, then exits with its code."""
    try:
        # Imported here, so that Ctrl-C during the imports is quiet too.
        from hipcli.app import run
        from hipcli.terminal.console import Console

        console = Console.real()
        code = run(sys.argv[1:], console)
        console.settle_stdout()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
