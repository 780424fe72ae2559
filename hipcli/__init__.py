"""hip: questions about books, code bases and PDFs of millions of tokens, answered by a local model.

This house is the terminal: commands, documents, prompts, output. It knows no tensor. Below it stand
`hipcli.engine` (the model, the KV store, sessions) and `hipcli.kernels` (the arithmetic).
"""

from hipcli.version import __version__

__all__ = ["__version__"]
