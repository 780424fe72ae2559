"""Set before anything imports Triton: without a GPU its kernels run in the interpreter."""

import os
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")
