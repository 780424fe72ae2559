"""Which words of a command line are sources, which one is the question, and who may read stdin.

stdin is read only for `-`, for `-Q -` and `--files-from -`, or when there is no SOURCE and
something is piped in. A command that has its SOURCE never touches it, so an inherited pipe that
nobody closes can't hang it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hipcli.engine.errors import InputError, UsageError
from hipcli.terminal.console import Console

if TYPE_CHECKING:
    from hipcli.documents.spool import Spool

STDIN = "-"
EXAMPLE = 'hip ask book.pdf "Who wrote the letter?"'
_STDIN_EXAMPLE = 'git log | hip ask - "What changed?"'


@dataclass(frozen=True, slots=True)
class Sources:
    """What to read.

    Args:
        names: paths, as typed; `-` is stdin.
        stdin: what stdin brought when `-` is among the names.
    """

    names: tuple[str, ...]
    stdin: "Spool | None"


@dataclass(frozen=True, slots=True)
class Asked:
    """One question.

    Args:
        sources: what to read; None when a saved session is resumed.
        question: what is asked.
        session: the session to resume: an id, the start of one, a name, or empty for the latest;
            None to read `sources`.
    """

    sources: Sources | None
    question: str
    session: str | None


def read_asked(
    console: Console,
    words: Sequence[str],
    resume: str | None,
    question_file: str | None,
    files_from: str | None,
    null: bool,
) -> Asked:
    """Sorts the words of `hip ask`.

    Args:
        console: for stdin.
        words: the positional arguments.
        resume: value of `--resume`: empty when it stands without one, None when it isn't there.
        question_file: value of `-Q`.
        files_from: value of `--files-from`.
        null: True for `-0`.

    Raises:
        UsageError: no question, no source, or two that want stdin.
    """
    _check_one_reader(words, {"-Q -": question_file, "--files-from -": files_from})
    words = list(words)
    if resume and not words and question_file is None:
        # In `--resume "What else?"` the only word is the question.
        words, resume = [resume], ""
    if question_file is not None:
        question = _read_question(console, question_file)
    elif words:
        if words[-1] == STDIN or _is_lone_source(words, resume, files_from):
            raise _no_question(console, words)
        question = _as_utf8(words.pop())
    else:
        raise _no_question(console, words)
    _check_question(console, question, words)
    if resume is not None:
        refuse_sources(words, files_from)
        return Asked(None, question, resume)
    if question_file is None:
        _refuse_unquoted(words, question)
    stdin_taken = STDIN in (question_file, files_from)
    return Asked(read_sources(console, words, files_from, null, stdin_taken), question, None)


def _as_utf8(word: str) -> str:
    """The word as UTF-8 whatever the locale says: Python marks bytes that the locale has not."""
    try:
        return word.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return word


def _check_question(console: Console, question: str, words: Sequence[str]) -> None:
    if not question.strip():
        raise UsageError("the question is empty", f"try: {EXAMPLE}")
    try:
        question.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the question is not valid text at character {error.start + 1}", "write it in UTF-8"
        ) from error
    if words and len(question) < 256 and os.path.lexists(question):
        console.note(f"note: the last argument is the question, though {question!r} is a file too")


def _refuse_unquoted(words: Sequence[str], question: str) -> None:
    """`hip ask book.txt Who wrote it?` has words for SOURCEs that are plainly none."""
    last = len(words)
    while last > 1 and words[last - 1].isalpha() and not os.path.lexists(words[last - 1]):
        last -= 1
    if last < len(words) and os.path.lexists(words[0]):
        meant = " ".join([*words[last:], question])
        raise InputError(
            f"no file or folder called {words[last]}",
            f'a question of several words is quoted: hip ask {" ".join(words[:last])} "{meant}"',
        )


def read_batch(
    console: Console,
    words: Sequence[str],
    resume: str | None,
    batch: str,
    files_from: str | None,
) -> bytes:
    """The file of questions of `hip ask --batch`.

    Args: as for `read_asked`, and
        batch: value of `--batch`; `-` is stdin.

    Raises:
        UsageError: a file that cannot be read, sources besides `--resume`, or two that want stdin.
    """
    _check_one_reader(words, {"--batch -": batch, "--files-from -": files_from})
    if words and (" " in words[-1] or words[-1].endswith("?")) and not os.path.lexists(words[-1]):
        raise UsageError(
            f"the questions come from --batch, so {words[-1]!r} has no place",
            "write it into that file, or leave --batch out",
        )
    if resume is not None:
        refuse_sources(words, files_from)
    if batch == STDIN:
        return console.read_stdin("hip ask book.pdf --batch - < questions.jsonl")
    return _read_file(batch, "the file of questions", "check the path given to --batch")


def batch_sources(
    console: Console,
    words: Sequence[str],
    batch: str,
    files_from: str | None,
    null: bool,
    needed: bool,
) -> Sources | None:
    """What those questions of a batch are about that name no sources of their own.

    Args: as for `read_batch`, and
        needed: there are such questions; else stdin is no source unless it is named.

    Returns:
        None where nothing is named and nothing is needed.

    Raises:
        UsageError: there are sources and nobody is asked about them, or none and they are needed.
    """
    named = bool(words) or files_from is not None
    if named and not needed:
        raise UsageError(
            f"every line of --batch has its own sources, so {[*words, '--files-from'][0]!r} has "
            "no place",
            'leave it out, or leave "sources" out of the lines that are about it',
        )
    if not needed:
        return None
    return read_sources(console, words, files_from, null, STDIN in (batch, files_from))


def refuse_sources(words: Sequence[str], files_from: str | None) -> None:
    """A resumed session has its documents already."""
    if words or files_from is not None:
        raise UsageError(
            f"--resume reads nothing anew, so {[*words, '--files-from'][0]!r} has no place",
            "leave the SOURCE out, or leave --resume out",
        )


def read_sources(
    console: Console,
    words: Sequence[str],
    files_from: str | None,
    null: bool,
    stdin_taken: bool = False,
) -> Sources:
    """The sources of a command, with stdin read if it is one of them.

    Raises:
        UsageError: there is none, or the list of `--files-from` cannot be read.
        InputError: the list of `--files-from` is empty.
    """
    names = list(words)
    if files_from is not None:
        names += _read_list(console, files_from, null)
    piped_in = console.stdin is not None and not console.stdin_is_terminal
    if not names and piped_in and not stdin_taken:
        names = [STDIN]
    if not names:
        raise UsageError(
            "no SOURCE given: no file, no folder, and nothing piped in", f"try: {EXAMPLE}"
        )
    stdin = console.spool_stdin(_STDIN_EXAMPLE) if STDIN in names else None
    return Sources(tuple(names), stdin)


def _check_one_reader(words: Sequence[str], files: Mapping[str, str | None]) -> None:
    """Only one of `words` and of the options in `files` may read stdin."""
    readers = [name for name, value in files.items() if value == STDIN]
    if STDIN in words:
        readers.append("the SOURCE -")
    if len(readers) > 1:
        raise UsageError(
            f"{' and '.join(readers)} both want standard input", "let one of them be a file"
        )


def _is_lone_source(words: Sequence[str], resume: str | None, files_from: str | None) -> bool:
    """True when the only word names a file: then the question is missing, and stdin is not read."""
    return len(words) == 1 and resume is None and files_from is None and os.path.lexists(words[0])


def _no_question(console: Console, words: Sequence[str]) -> UsageError:
    if STDIN in words:
        where = ", and standard input is a terminal" if console.stdin_is_terminal else ""
        return UsageError(
            f"'-' is a SOURCE, the question is missing{where}", f"try: {_STDIN_EXAMPLE}"
        )
    if words:
        return UsageError(
            f"{words[-1]!r} is a file or folder, the question is missing",
            f'try: hip ask {words[-1]} "QUESTION"',
        )
    return UsageError("no question given", f"try: {EXAMPLE}")


def _read_question(console: Console, name: str) -> str:
    if name == STDIN:
        content = console.read_stdin("echo QUESTION | hip ask book.pdf -Q -")
    else:
        content = _read_file(name, "the question file", "check the path given to -Q")
    try:
        return content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the question in {name!r} is not UTF-8: {error.reason} at byte {error.start}",
            "save it as UTF-8",
        ) from error


def _read_list(console: Console, name: str, null: bool) -> list[str]:
    from hipcli.documents import parse_file_list

    if name == STDIN:
        content = console.read_stdin('git ls-files | hip ask --files-from - "What is this?"')
    else:
        content = _read_file(name, "the list of files", "check the path given to --files-from")
    names = parse_file_list(content, nul=null)
    if not names:
        raise InputError(f"the list of files in {name!r} is empty", "it holds one path a line")
    # In a list, `-` is a file of that name.
    return [os.path.join(".", entry) if entry == STDIN else entry for entry in names]


def _read_file(name: str, what: str, hint: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {what} {name!r}: {error.strerror}", hint) from error
