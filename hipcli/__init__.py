"""hip: questions about books, code bases and PDFs of millions of tokens, answered by a local model.

This house is the terminal: commands, documents, prompts, output. It knows no tensor. Below it stand
`hipcli.engine` (the model, the KV store, sessions) and `hipcli.kernels` (the arithmetic).
"""

from typing import TYPE_CHECKING, Any

from hipcli.version import __version__

if TYPE_CHECKING:
    from hipcli.api import Documents

__all__ = ["__version__", "open"]


def open(*sources: str, **options: Any) -> "Documents":
    """Reads documents for questions; see `hipcli.api`, which is loaded by the first call."""
    from hipcli.api import open_documents

    return open_documents(*sources, **options)
