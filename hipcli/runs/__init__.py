"""One run of a command, from words to answer, and the pieces that runs share."""
