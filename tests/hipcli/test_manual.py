"""What is written about the commands is what they say themselves."""

from pathlib import Path

import pytest

from hipcli.terminal.manual import help_pages, man_page, markdown

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "made"), [("help.md", markdown), ("hip.1", man_page)])
def test_the_files_are_as_the_commands(name: str, made) -> None:  # type: ignore[no-untyped-def]
    kind = {"help.md": "help", "hip.1": "man"}[name]
    hint = f"make it anew: python -m hipcli.terminal.manual {kind} > docs/{name}"
    assert (DOCS / name).read_text("utf-8") == made(), hint


def test_every_page_fits_a_terminal_and_has_an_example() -> None:
    pages = dict(help_pages())
    assert {"hip", "hip ask", "hip sessions list", "hip config show"} <= set(pages)
    for name, page in pages.items():
        assert max(map(len, page.splitlines())) <= 80
        if " " in name and "COMMAND" not in page.split("\n")[0]:
            assert f"\n  {name}" in page, name
