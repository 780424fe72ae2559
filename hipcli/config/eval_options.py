"""The options of `hip eval` alone."""

from pathlib import Path

from hipcli.config.option import Option

# Lists are words with commas between them.
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
    Option(
        "png",
        Path,
        None,
        "Write heat maps to FILE as a picture; needs pip install 'hipcli[png]'.",
        metavar="FILE",
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
