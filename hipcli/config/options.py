"""Every option that more than one command takes: literal tables, the one place that names them.

Large groups have files of their own: `reading_options.py`, `machine_options.py`,
`answer_options.py`, `session_options.py`, and `eval_options.py` for `hip eval` alone.

An option has one name on all its ways: `--max-new-tokens`, `HIP_MAX_NEW_TOKENS`, the TOML key
`max_new_tokens`, and the field of the config it ends in. `parameters.py` turns the tables into
Typer parameters, `settings.py` the parsed values into configs. Environment variables are read here
(by Typer, through `envvar`) and nowhere else.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path

import platformdirs

from hipcli.config.answer_options import ANSWER, EVIDENCE
from hipcli.config.eval_options import EVAL
from hipcli.config.machine_options import MACHINE, RANKS
from hipcli.config.option import Option, default_of
from hipcli.config.reading_options import COUNT, READING
from hipcli.config.session_options import SESSION
from hipcli.engine.config import EngineConfig

DEFAULT_MODEL: str = default_of(EngineConfig, "model")


def completion_requested() -> bool:
    """True when a shell runs `hip` to complete a command line; Typer's own variable says so."""
    return bool(os.environ.get("_HIP_COMPLETE"))


def switched_on(name: str) -> bool:
    """True when the environment switches a flag on, for errors before Typer has read it."""
    return os.environ.get(f"HIP_{name.upper()}", "").lower() in ("1", "true", "t", "yes", "y", "on")


def process_environment() -> MutableMapping[str, str]:
    """The variables of this process: other libraries read theirs when they are imported, and
    what hip settles for them is written here before."""
    return os.environ


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
