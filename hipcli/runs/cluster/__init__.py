"""`hip ask --batch --cluster`: jobs over workers of a Ray cluster, each with an engine of its own.

`allotment.py` decides who does what, and knows no Ray; `ray_cluster.py` is the seam to Ray;
`worker.py` runs in the workers; `running.py` is the command.
"""
