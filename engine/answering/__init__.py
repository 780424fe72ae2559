"""From a question to the tokens of its answer: votes, passages, decoding."""
