"""Settings of the engine: frozen, checked when made, defaults stated once."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from hipcli.engine.sessions.names import check_name

# Of keys and values in the store; auto is the dtype of the weights.
# Of keys and values in pages: auto is the model's own, fp8_e4m3 is for GPUs and int8 for CPUs.
KV_DTYPES = ("auto", "fp8_e4m3", "int8")
# Of weights in memory; auto has them in the dtype.
WEIGHT_FORMS = ("auto", "int8")
ANSWER_MODES = ("auto", "attend", "share", "reread")


# Room for an answer is set aside before it begins.
MAX_NEW_TOKENS = 1 << 20

# With the token before them they are one pass, which a CPU runs fast up to 16 tokens.
MAX_DRAFT_TOKENS = 15
# Where nobody says otherwise: measured on a CPU (docs/log.md); on a GPU a guess would cost the
# graphs of single steps.
CPU_DRAFT_TOKENS = 12
GPU_DRAFT_TOKENS = 0

# Pages that are looked at again before a question is answered: measured (docs/log.md).
LOOK_PAGES = 16


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """How an answer is generated.

    Args:
        max_new_tokens: at most this many tokens, from 1 to `MAX_NEW_TOKENS`.
        temperature: 0 takes the most likely token each time; above 0 samples.
        seed: of the sampling.
        draft_tokens: at most so many tokens are guessed from the passages and checked in one pass,
            from 0 (none) to `MAX_DRAFT_TOKENS`; None for what is fastest on the device. The answer
            is the same up to rounding.
    """

    max_new_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    draft_tokens: int | None = None

    def __post_init__(self) -> None:
        drafted = self.draft_tokens
        if drafted is not None and not 0 <= drafted <= MAX_DRAFT_TOKENS:
            raise ValueError(f"draft_tokens is {drafted}; it must be from 0 to {MAX_DRAFT_TOKENS}")
        if not 1 <= self.max_new_tokens <= MAX_NEW_TOKENS:
            raise ValueError(
                f"max_new_tokens is {self.max_new_tokens}; it must be from 1 to {MAX_NEW_TOKENS}"
            )
        if not 0 <= self.temperature <= 10:
            raise ValueError(f"temperature is {self.temperature}; it must be between 0 and 10")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Where contexts are saved.

    Args:
        directory: root of the cache; None saves nothing.
        refresh: read the documents again although a session matches.
        cached_only: answer from a saved session or fail with NotCachedError.
        name: a name for the session, for `--resume`.
        branch: which fork of the session, as its manifest says; empty for none.
        keep: part of the pages between sinks and window that is kept once the context is read,
            above 0; 1 keeps all. None keeps all as long as they fit `max_bytes`, else as many as
            do, and takes a pruned session where there is no full one.
        max_bytes: saved contexts beyond this are removed, least recently used first; 0 means the
            smaller of 50 GiB and a quarter of the disk's free space.
    """

    directory: Path | None = None
    refresh: bool = False
    cached_only: bool = False
    name: str = ""
    branch: str = ""
    keep: float | None = None
    max_bytes: int = 0

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.keep is not None and not 0 < self.keep <= 1:
            raise ValueError(f"keep is {self.keep}; it must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Which model runs how.

    Args:
        models_dir: where pulled models lie.
        model: alias, hub id, local folder or .gguf file.
        device: auto (a GPU where there is one), cpu, cuda, cuda:N.
        dtype: auto, bfloat16, float32.
        kv_dtype: a name in KV_DTYPES; fp8_e4m3 (on a GPU) and int8 (on a CPU) take half the memory
            of bfloat16.
        weights: a name in WEIGHT_FORMS; int8 takes half the memory of bfloat16 and answers
            faster, and a little differently; CPU only.
        threads: of a processor's matrix products; 0 has one for each core it may use.
        gpu_memory_bytes: most that weights, keys and values may take on a GPU; keys and values
            beyond it stay in main memory. 0 for what there is.
        host_memory_bytes: most that the process should take where the model runs on a CPU; beside
            a GPU, most for keys and values that it does not hold. Those beyond it stay in files.
            0 for most of what is free.
        method: a name in METHODS.
        method_settings: fields of the method's config that differ from its defaults.
        prefill_chunk_tokens: tokens of a document that pass through the model at once, a multiple
            of 64; 0 chooses by device and free memory.
        calibrated: heads vote as the model's calibration weighs them, if it has one.
        looks: how many of the pages with most votes are looked at again; 0 leaves it at the votes.
        verify_weights: tell the weights by all their bytes, read at every start, and not by
            samples that are remembered; sessions of the two kinds are different ones.
    """

    models_dir: Path
    model: str = "smollm2"
    device: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    weights: str = "auto"
    threads: int = 0
    gpu_memory_bytes: int = 0
    host_memory_bytes: int = 0
    method: str = "hip"
    method_settings: dict[str, int] = field(default_factory=dict)
    prefill_chunk_tokens: int = 0
    calibrated: bool = True
    looks: int = LOOK_PAGES
    verify_weights: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device is {self.device!r}; it must be auto, cpu, cuda or cuda:N")
        if self.kv_dtype not in KV_DTYPES:
            allowed = ", ".join(KV_DTYPES)
            raise ValueError(f"kv_dtype is {self.kv_dtype!r}; it must be one of {allowed}")
        if self.weights not in WEIGHT_FORMS:
            raise ValueError(f"weights is {self.weights!r}; it must be {' or '.join(WEIGHT_FORMS)}")
        if self.looks < 0:
            raise ValueError(f"looks is {self.looks}; it must be 0 or more")
        if self.threads < 0:
            raise ValueError(f"threads is {self.threads}; it must be 0 or more")
        chunk = self.prefill_chunk_tokens
        if chunk < 0 or chunk % 64:
            raise ValueError(f"prefill_chunk_tokens is {chunk}; it must be 0 or a multiple of 64")
