"""Several processes, each with a part of a context's pages, answer as one would.

Every rank holds the weights and its own pages. Reading, a rank runs the model's linear layers for
the tokens of its own pages; in each layer queries go to all ranks, every rank attends over its own
pages, and the partial results go back to be merged (DistAttention). The tokens of a question or an
answer run on all ranks alike, which exchange partial results alone.

Rank 0 runs the engine as it is: its runner, store and passes stand for those of all ranks, and what
they are asked to do every rank does (`shard.py`). The others know no request, no session and no
terminal. See docs/several-gpus.md.
"""
