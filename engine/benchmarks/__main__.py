"""A length of `hip bench engine` in a process of its own."""

import sys

from hipcli.engine.benchmarks.engine import main

sys.exit(main([sys.executable, "-m", "hipcli.engine.benchmarks"]))
