"""A context whose keys and values are three times the memory that is allowed (`make quality`)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import real_models_dir

LIMIT_BYTES = 2 << 30
TOKENS = 256 << 10

CHILD = """
import json, sys
from pathlib import Path
import numpy as np
from hipcli.engine.benchmarks.engine_cpu import peak_mib
from hipcli.engine.config import CacheConfig, EngineConfig, GenerationConfig
from hipcli.engine.engine import Engine
from hipcli.engine.events import Result
from hipcli.engine.request import AskRequest, InputRecord

models, cache, tokens, limit = sys.argv[1:]
config = EngineConfig(Path(models), device="cpu", host_memory_bytes=int(limit))
ids = np.random.default_rng(0).integers(100, 40000, int(tokens), dtype=np.int32)
request = AskRequest(
    context_ids=ids,
    question_ids=ids[-24:].tolist(),
    prefix_tokens=16,
    inputs=(InputRecord("random", tokens),),
    answer="reread",
    generation=GenerationConfig(max_new_tokens=8),
    cache=CacheConfig(Path(cache) if cache else None),
)
events = Engine.open(config).ask(request)
(result,) = (event for event in events if isinstance(event, Result))
told = {"peak": peak_mib() * 2**20, "answer": result.answer, "cached": result.cached_tokens}
print(json.dumps(told))
"""


def ask(cache: str) -> dict:
    """One question in a process of its own."""
    command = [sys.executable, "-c", CHILD, str(real_models_dir()), cache, str(TOKENS)]
    command.append(str(LIMIT_BYTES))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_memory_stays_below_the_limit(tmp_path: Path) -> None:
    unsaved = ask("")
    cold, warm = ask(str(tmp_path)), ask(str(tmp_path))
    assert warm["cached"] == TOKENS
    assert unsaved["answer"] == cold["answer"] == warm["answer"]
    for told in (unsaved, cold, warm):
        assert told["peak"] < LIMIT_BYTES
