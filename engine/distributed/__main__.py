"""`python -m hipcli.engine.distributed ADDRESS CONFIG`: a rank that rank 0 has started.

Both arguments are JSON: the fields of an `Address` and of an `EngineConfig`. An error is one line
on stderr and exit code 1. What `threads.py` settles in the environment comes from rank 0, whose
child this process is.
"""

import json
import os
import signal
import sys


def main(words: list[str]) -> int:
    """Be a rank; the exit code."""
    # Ctrl-C reaches all processes of a terminal; rank 0 decides what it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from hipcli.engine.distributed.control import Address
    from hipcli.engine.distributed.starting import config_of
    from hipcli.engine.distributed.working import work
    from hipcli.engine.errors import HipError

    try:
        work(config_of(words[1]), Address(**json.loads(words[0])))
    except HipError as error:
        print(f"hip: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Threads of the transport may wait for ranks that are gone.
    os._exit(code)
