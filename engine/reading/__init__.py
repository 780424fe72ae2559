"""A context brought into the store: its session, its chunks, what it may take and how long."""
