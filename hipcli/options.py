"""Every option that more than one command takes: one literal table, the one place that names them.

An option has one name on all its ways: `--max-new-tokens`, `HIP_MAX_NEW_TOKENS`, the TOML key
`max_new_tokens`, and the field of the config it ends in. `settings.py` turns the table into Typer
parameters and the parsed values into configs. Environment variables are read here (by Typer,
through `envvar`) and nowhere else.
"""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from hipcli.engine.config import ANSWER_MODES, KV_DTYPES, EngineConfig, GenerationConfig


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Args:
        name: its name in Python and TOML; flag and variable are derived from it.
        kind: str, int, float, bool, Path or list (of str).
        default: the value when nobody says otherwise; None means "not set".
        help: one line for `--help`.
        flags: the spelling on the command line when it isn't just `--name`.
        choices: the allowed values, for a kind str.
        minimum: the smallest allowed number.
        metavar: the placeholder in `--help`.
        in_file: False for what makes no sense as a key of a configuration file.
    """

    name: str
    kind: type
    default: Any
    help: str
    flags: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    metavar: str | None = None
    in_file: bool = True

    @property
    def variable(self) -> str:
        return f"HIP_{self.name.upper()}"


def _default(config: type, name: str) -> Any:
    """The default of a config's field: it exists once, in the config."""
    for field in dataclasses.fields(config):
        if field.name == name:
            return field.default
    raise LookupError(f"{config.__name__} has no field {name}")


DEFAULT_MODEL: str = _default(EngineConfig, "model")


def completion_requested() -> bool:
    """True when a shell runs `hip` to complete a command line; Typer's own variable says so."""
    return bool(os.environ.get("_HIP_COMPLETE"))


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
        _default(EngineConfig, "device"),
        "auto, cpu, cuda or cuda:N.",
        metavar="DEVICE",
    ),
    Option(
        "dtype",
        str,
        _default(EngineConfig, "dtype"),
        "Number format of weights and activations.",
        choices=("auto", "bfloat16", "float32"),
    ),
    Option(
        "kv_dtype",
        str,
        _default(EngineConfig, "kv_dtype"),
        "Number format of stored keys and values; fp8_e4m3 halves their memory, on GPUs only.",
        choices=KV_DTYPES,
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

METHOD = (
    Option(
        "method",
        str,
        _default(EngineConfig, "method"),
        "Attention method; `hip methods` lists them.",
        metavar="NAME",
    ),
    Option(
        "budget_tokens",
        int,
        None,
        "Tokens that a query may select (default: the method's own).",
        minimum=0,
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
    Option("cite", bool, False, "After the answer, list the passages it rests on."),
    Option("system", str, None, "System prompt.", metavar="TEXT"),
    Option(
        "max_new_tokens",
        int,
        _default(GenerationConfig, "max_new_tokens"),
        "Longest answer.",
        ("--max-new-tokens", "-n"),
        minimum=1,
        metavar="N",
    ),
    Option(
        "temperature",
        float,
        _default(GenerationConfig, "temperature"),
        "0 is greedy: the same answer every time.",
        minimum=0,
        metavar="T",
    ),
    Option(
        "seed",
        int,
        _default(GenerationConfig, "seed"),
        "Seed for a temperature above 0.",
        metavar="N",
    ),
)

READING = (
    Option(
        "include", list, (), "Read only files that match this pattern (repeatable).", metavar="GLOB"
    ),
    Option(
        "exclude", list, (), "Leave out files that match this pattern (repeatable).", metavar="GLOB"
    ),
    Option("hidden", bool, False, "Read hidden files of a folder too."),
    Option(
        "gitignore",
        bool,
        True,
        "Leave out what git ignores, or don't.",
        ("--gitignore/--no-gitignore",),
    ),
    Option(
        "max_file_size", str, None, "Skip larger files of a folder, as in 2MiB.", metavar="SIZE"
    ),
    Option(
        "max_files",
        int,
        None,
        "Refuse folders with more files to read (default: 50,000).",
        minimum=1,
        metavar="N",
    ),
    Option(
        "max_total_size",
        str,
        None,
        "Refuse folders with more bytes to read (default: 4GiB).",
        metavar="SIZE",
    ),
    Option("encoding", str, None, "Encoding of text files that are not UTF-8.", metavar="NAME"),
    Option(
        "password_file", Path, None, "File whose first line opens encrypted PDFs.", metavar="FILE"
    ),
    Option("strict", bool, False, "Stop (exit 3) when any part of the input is unreadable."),
    Option(
        "files_from",
        str,
        None,
        "Read more SOURCEs from FILE, one a line; - is stdin.",
        metavar="FILE",
        in_file=False,
    ),
    Option(
        "null",
        bool,
        False,
        "Names in --files-from end with a NUL byte.",
        ("--null", "-0"),
        in_file=False,
    ),
)

COUNT = (
    Option(
        "count",
        str,
        "tokens",
        "What to count: tokens of the model, words, or tokens of hosted models.",
        choices=("tokens", "words", "cl100k_base", "o200k_base"),
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

SESSION = (
    Option(
        "cache_max_size",
        str,
        None,
        "What saved sessions may take together, as in 20GiB (default: the smaller of 50GiB and a "
        "quarter of the free disk).",
        metavar="SIZE",
    ),
    Option("name", str, "", "Name the saved session.", metavar="NAME"),
    Option("no_cache", bool, False, "Neither use nor save a session."),
    Option("refresh", bool, False, "Read everything anew even if a saved session matches."),
    Option(
        "stale_ok",
        bool,
        False,
        "Resume a session as it is although its files have changed; the answer is marked.",
    ),
    Option("cached_only", bool, False, "Stop (exit 5) when no saved session matches."),
)

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


def _changed(group: tuple[Option, ...], name: str, **changes: Any) -> Option:
    """An option of a group that means a little more or less to another command."""
    (option,) = (option for option in group if option.name == name)
    return dataclasses.replace(option, **changes)


# `hip eval`: lists are words with commas between them.
EVAL = (
    Option("tasks", str, "passkey", "Tasks, or all; --list names them.", metavar="NAMES"),
    Option(
        "haystacks",
        str,
        "",
        "noise, prose, code; files when --haystack-files is given (default: files, else prose).",
        metavar="NAMES",
    ),
    Option(
        "haystack_files",
        list,
        (),
        "Text or code to hide needles in: a file or a folder (repeatable).",
        metavar="PATH",
    ),
    Option(
        "lengths",
        str,
        "4k",
        "Tokens of a prompt with its answer, as in 8k,32k,1m (k is 1,024).",
        metavar="N,N",
    ),
    Option("depths", str, "0.1,0.5,0.9", "Places of the needles, 0 to 1.", metavar="D,D"),
    Option("samples", int, 1, "Texts for each cell of the grid.", minimum=1, metavar="N"),
    Option(
        "out",
        Path,
        None,
        "Add results to FILE, one JSON object a line; cells that are in it are not asked again.",
        metavar="FILE",
        in_file=False,
    ),
    Option(
        "html", Path, None, "Write heat maps to FILE, a page that needs no other.", metavar="FILE"
    ),
    Option("limit_s", float, None, "Begin no cell after so many seconds.", metavar="S"),
    Option(
        "fidelity",
        Path,
        None,
        "Instead of tasks: compare methods with dense attention on this text.",
        metavar="FILE",
        in_file=False,
    ),
    Option("list", bool, False, "List tasks, haystacks and baselines, and stop.", in_file=False),
)

EVAL_METHOD = (
    _changed(METHOD, "method", help="Methods, or the baselines bm25 and oracle.", metavar="NAMES"),
    *METHOD[1:],
)
EVAL_ANSWER = (
    _changed(
        ANSWER,
        "answer",
        help="Answer modes of the methods: auto, attend, share, reread.",
        choices=(),
        metavar="NAMES",
    ),
    _changed(ANSWER, "seed", help="Seed of all texts."),
)
# Every length is asked for, so nothing is cut.
EVAL_MACHINE = tuple(option for option in MACHINE if option.name not in ("context_limit", "fit"))

# The name of the help section for each group. `hip ask` takes all of these.
SECTIONS = {
    "Model": MODEL + MODELS_DIR + MACHINE,
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
