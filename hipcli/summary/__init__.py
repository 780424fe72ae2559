"""`hip summarize`: sections of what was read, a pass over each, one synthesis."""
