"""Keeping the libraries' own bars, warnings and log lines off the terminal."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

_NOISY = ("transformers", "huggingface_hub", "accelerate", "torch", "gguf")


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers and its friends inside the block; the first import belongs inside too.

    Python's own stdout and stderr are set aside, since progress bars write there directly; the
    process's file descriptors are not touched, so other threads may go on reporting through them.
    """
    levels = {name: logging.getLogger(name).level for name in _NOISY}
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sink = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
