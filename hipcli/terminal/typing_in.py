"""What a user types into `hip chat`, line by line: at a terminal with history, else from a pipe."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from hipcli.terminal.console import Console

PROMPT = "> "
HISTORY = "chat-history"


def lines(console: Console, history: Path | None) -> Callable[[], Iterator[str]]:
    """A source of lines that begins to read when it is called.

    Args:
        history: folder that keeps what was typed for the next time; None keeps nothing.
    """
    if not console.stdin_is_terminal or not console.stderr_is_terminal:
        return lambda: _piped(console)
    return lambda: _typed(console, history)


def _piped(console: Console) -> Iterator[str]:
    """Lines of stdin, UTF-8 whatever the locale says."""
    stream = console.stdin
    if stream is None:
        return
    for line in getattr(stream, "buffer", stream):
        text = line if isinstance(line, str) else line.decode("utf-8", "replace")
        yield text.removeprefix("\ufeff").rstrip("\r\n")


def _typed(console: Console, folder: Path | None) -> Iterator[str]:
    """Lines typed at the terminal. Alt-Enter begins a new line within a question.

    The prompt is drawn on stderr: stdout carries answers alone.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import create_output

    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(
        history=_history(folder), key_bindings=bindings, output=create_output(console.stderr)
    )
    while True:
        try:
            yield session.prompt(PROMPT)
        except KeyboardInterrupt:
            # Ctrl-C drops the line that is being typed.
            continue
        except EOFError:
            return


def _history(folder: Path | None):  # type: ignore[no-untyped-def]
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if folder is not None:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = folder / HISTORY
            path.touch(mode=0o600)
            return FileHistory(str(path))
    return InMemoryHistory()
