"""The managers and the scheduler of a pool, driven over traces on machines that are not here.

`hardware.py` the tables of speed, `traces.py` the requests, `cluster.py` what happens.
"""
