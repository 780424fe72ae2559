"""Rich on stderr, as the options of this run want it."""

from typing import TYPE_CHECKING

from hipcli.terminal.console import Console

if TYPE_CHECKING:
    from rich.console import Console as RichConsole


def on_stderr(console: Console) -> "RichConsole":
    """Rich's console over stderr, which must be a terminal; nothing in a text is markup."""
    from rich.console import Console as RichConsole

    return RichConsole(
        file=console.stderr,
        width=console.own_width,
        force_terminal=True,
        no_color=True if console.no_color else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
