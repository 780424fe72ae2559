"""Keeping the libraries' own bars, warnings and log lines off the terminal."""

import contextlib
import logging
import warnings
from collections.abc import Iterator

_NOISY = ("huggingface_hub", "accelerate", "torch", "gguf")


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers and its friends inside the block.

    By their own switches, not by redirecting stderr: the progress that hip itself shows while a
    large model loads goes there.
    """
    levels = {name: logging.getLogger(name).level for name in _NOISY}
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Importing it sets its log level, so that cannot be changed before.
        from transformers.utils import logging as library

        verbosity, bars = library.get_verbosity(), library.is_progress_bar_enabled()
        library.set_verbosity(logging.CRITICAL)
        library.disable_progress_bar()
        try:
            yield
        finally:
            library.set_verbosity(verbosity)
            if bars:
                library.enable_progress_bar()
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
