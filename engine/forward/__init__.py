"""A pass of tokens through the model: runner, state of a pass, rotary tables, norms."""
