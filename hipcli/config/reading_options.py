"""The options of reading documents."""

from pathlib import Path

from hipcli.config.option import Option

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
