"""One KV cache over many instances: who keeps which block, and who lends to whom.

An instance is one engine with its own memory. An instance whose long requests leave no room for
others (a debtor) moves blocks to one that has room to spare (a creditor), which keeps them and
attends them for it. `rmanager.py` is the book-keeper of an instance, `gmanager.py` the one that
sees them all and decides, by `scheduler.py` and `performance.py`; `messages.py` is all they say to
one another. None of them opens a connection or reads a clock: messages and the time go in,
messages come out, so the same classes run in a test, in the simulator and as Ray actors.
`transport.py` moves the pages.

Source: Infinite-LLM (arXiv 2401.02669), version 2. Where this differs: `docs/cluster.md`.
"""
