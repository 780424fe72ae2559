"""Every option that more than one command takes: literal tables, the one place that names them.

`eval_options.py` has those of `hip eval` alone, `reading_options.py` and `session_options.py` two
large groups.

An option has one name on all its ways: `--max-new-tokens`, `HIP_MAX_NEW_TOKENS`, the TOML key
`max_new_tokens`, and the field of the config it ends in. `parameters.py` turns the tables into
Typer parameters, `settings.py` the parsed values into configs. Environment variables are read here
(by Typer, through `envvar`) and nowhere else.
"""

import os
from pathlib import Path

import platformdirs

from hipcli.config.eval_options import EVAL
from hipcli.config.option import Option, default_of
from hipcli.config.reading_options import COUNT, READING
from hipcli.config.session_options import SESSION
from hipcli.engine.config import (
    ANSWER_MODES,
    CPU_DRAFT_TOKENS,
    GPU_DRAFT_TOKENS,
    KV_DTYPES,
    MAX_DRAFT_TOKENS,
    WEIGHT_FORMS,
    EngineConfig,
    GenerationConfig,
)

DEFAULT_MODEL: str = default_of(EngineConfig, "model")


def completion_requested() -> bool:
    """True when a shell runs `hip` to complete a command line; Typer's own variable says so."""
    return bool(os.environ.get("_HIP_COMPLETE"))


def switched_on(name: str) -> bool:
    """True when the environment switches a flag on, for errors before Typer has read it."""
    return os.environ.get(f"HIP_{name.upper()}", "").lower() in ("1", "true", "t", "yes", "y", "on")


def told_rank() -> dict[str, str] | None:
    """What torchrun, or whoever starts processes as it does, tells each of them: rank, world_size,
    local_rank, master_addr, master_port, torchelastic_use_agent_store; None where nobody did."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(os.environ.get(name) for name in names):
        return None
    others = {"LOCAL_RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "False"}
    told = {name: os.environ[name] for name in names}
    told |= {name: os.environ.get(name, usual) for name, usual in others.items()}
    return {name.lower(): value for name, value in told.items()}


MODELS_DIR = (
    Option(
        "models_dir",
        Path,
        None,
        "Where pulled models lie (default: beside the cache).",
        metavar="FOLDER",
    ),
)

MODEL = (
    Option(
        "model",
        str,
        DEFAULT_MODEL,
        "Model: an alias, org/name[@rev], a folder with safetensors, or a .gguf file.",
        ("--model", "-m"),
        metavar="NAME",
    ),
)

MACHINE = (
    Option(
        "device",
        str,
        default_of(EngineConfig, "device"),
        "auto, cpu, cuda or cuda:N.",
        metavar="DEVICE",
    ),
    Option(
        "dtype",
        str,
        default_of(EngineConfig, "dtype"),
        "Number format of weights and activations.",
        choices=("auto", "bfloat16", "float32"),
    ),
    Option(
        "kv_dtype",
        str,
        default_of(EngineConfig, "kv_dtype"),
        "Number format of stored keys and values; fp8_e4m3 halves their memory, on GPUs only.",
        choices=KV_DTYPES,
    ),
    Option(
        "weights",
        str,
        default_of(EngineConfig, "weights"),
        "Weights in memory as --dtype says, or in 8 bits: faster answers on a processor, and a "
        "little different ones.",
        choices=WEIGHT_FORMS,
    ),
    Option(
        "threads",
        int,
        None,
        "Threads that compute on the processor; without it one for each core, or as many as a "
        "container may use.",
        minimum=1,
        metavar="N",
    ),
    Option(
        "calibrated",
        bool,
        default_of(EngineConfig, "calibrated"),
        "Let heads vote as `hip models calibrate` weighed them, or all alike; without a "
        "calibration all vote alike.",
        ("--calibrated/--no-calibrated",),
    ),
    Option(
        "gpu_memory",
        str,
        None,
        "Refuse what needs more GPU memory than this for weights, keys and values, as in 24GiB.",
        metavar="SIZE",
    ),
    Option(
        "host_memory",
        str,
        None,
        "Most main memory to take where the model runs on the processor, as in 2GiB (default: what"
        " is free). Keys and values beyond it stay on disk; weights and hip itself must fit.",
        metavar="SIZE",
    ),
    Option(
        "context_limit",
        int,
        None,
        "Refuse (or cut, see --fit) more tokens than this.",
        minimum=1,
        metavar="N",
    ),
    Option(
        "fit",
        str,
        "error",
        "What to do with more tokens than fit: stop, or keep the head, the tail, or both ends "
        "(middle leaves out the middle).",
        choices=("error", "head", "tail", "middle"),
    ),
)

RANKS = (
    Option(
        "gpus",
        int,
        1,
        "Spread a context over so many GPUs of this machine; with --device cpu over so many "
        "processes.",
        minimum=1,
        metavar="N",
    ),
    Option(
        "placement",
        str,
        "interleaved",
        "Which pages of a context lie on which of several GPUs: in turn, or in equal runs.",
        choices=("interleaved", "contiguous"),
    ),
    Option(
        "rank_timeout",
        int,
        30,
        "Give up when one of several GPUs was not heard of for so long.",
        minimum=3,
        metavar="SECONDS",
    ),
)

METHOD = (
    Option(
        "method",
        str,
        default_of(EngineConfig, "method"),
        "Attention method; `hip methods` lists them.",
        metavar="NAME",
    ),
    Option(
        "budget_tokens",
        int,
        None,
        "Tokens that a query may select, a multiple of 64 (default: the method's own).",
        minimum=64,
        metavar="N",
    ),
    Option(
        "window_tokens",
        int,
        None,
        "Latest tokens always attended (default: the method's own).",
        minimum=1,
        metavar="N",
    ),
    Option(
        "sink_tokens",
        int,
        None,
        "First tokens always attended (default: the method's own).",
        minimum=0,
        metavar="N",
    ),
)

ANSWER = (
    Option(
        "answer",
        str,
        "auto",
        "How the answer is found: attend to the whole context, share its voted "
        "passages, reread them, or let hip choose.",
        choices=ANSWER_MODES,
    ),
    Option(
        "rounds",
        int,
        1,
        "How often the passages of an answer are looked for: from the second time on by what the "
        "best ones name, for questions that take several facts. Each takes its time. 0, with "
        "--answer attend, looks for none: it starts soonest and answers worse.",
        minimum=0,
        metavar="N",
    ),
    Option("cite", bool, False, "After the answer, list the passages it rests on."),
    Option("system", str, None, "System prompt.", metavar="TEXT"),
    Option(
        "max_new_tokens",
        int,
        default_of(GenerationConfig, "max_new_tokens"),
        "Longest answer.",
        ("--max-new-tokens", "-n"),
        minimum=1,
        metavar="N",
    ),
    Option(
        "draft_tokens",
        int,
        default_of(GenerationConfig, "draft_tokens"),
        f"Most tokens guessed from the passages and checked at once, up to {MAX_DRAFT_TOKENS}; 0 "
        "guesses none. The answer is the same up to rounding, quotes come faster (default: "
        f"{CPU_DRAFT_TOKENS} on a processor, {GPU_DRAFT_TOKENS} on a GPU).",
        minimum=0,
        metavar="N",
    ),
    Option(
        "temperature",
        float,
        default_of(GenerationConfig, "temperature"),
        "0 is greedy: the same answer every time.",
        minimum=0,
        metavar="T",
    ),
    Option(
        "seed",
        int,
        default_of(GenerationConfig, "seed"),
        "Seed for a temperature above 0.",
        metavar="N",
    ),
)

EVIDENCE = (
    Option(
        "open_evidence",
        Path,
        None,
        "Write the passages behind the answer, highlighted, to FILE: one page for a browser.",
        metavar="FILE.html",
        in_file=False,
    ),
)

CACHE = (Option("cache_dir", Path, None, "Where sessions and models are kept.", metavar="FOLDER"),)

JSON = (Option("json", bool, False, "Print one JSON document.", ("--json",)),)

JSONL = (
    Option("jsonl", bool, False, "Print events as JSON, one a line; the last one is the result."),
)

OUTPUT = (
    Option(
        "output",
        Path,
        None,
        "Write to FILE instead of stdout (whole or not at all).",
        ("--output", "-o"),
        metavar="FILE",
    ),
)

PROGRESS = (Option("progress", str, "auto", "Progress on stderr.", choices=("auto", "on", "off")),)

TALK = (
    Option("quiet", bool, False, "No progress, no notices, no warnings.", ("--quiet", "-q")),
    Option(
        "verbose", int, 0, "Say more, such as where each setting came from.", ("--verbose", "-v")
    ),
    Option("debug", bool, False, "Show a traceback when something fails."),
    Option("no_color", bool, False, "No colours on stderr (NO_COLOR does the same)."),
    Option(
        "config",
        Path,
        None,
        "Configuration of a project; goes before the user's own.",
        metavar="FILE",
        in_file=False,
    ),
)

# The name of the help section for each group. `hip ask` takes all of these.
SECTIONS = {
    "Model": MODEL + MODELS_DIR + MACHINE,
    "Several GPUs": RANKS,
    "Method": METHOD,
    "Answer": ANSWER,
    "Documents": READING,
    "Session": CACHE + SESSION,
    "Output": JSON + JSONL + OUTPUT + PROGRESS + TALK,
}

ALL = COUNT + EVAL + EVIDENCE + tuple(option for group in SECTIONS.values() for option in group)


def default_cache_dir() -> Path:
    """The cache root when neither `--cache-dir` nor HIP_CACHE_DIR names one."""
    return platformdirs.user_cache_path("hip", appauthor=False)


def user_config_file() -> Path:
    """The user's own configuration file, which need not exist."""
    return platformdirs.user_config_path("hip", appauthor=False) / "config.toml"


def flag(name: str) -> str:
    """The long flag of the option called `name`, as a user types it."""
    for option in ALL:
        if option.name == name and option.flags:
            return option.flags[0].split("/")[0]
    return "--" + name.replace("_", "-")
