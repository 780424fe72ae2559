"""Documents and question to the text of a prompt."""
