"""Bytes to documents: one reader per kind of file.

`read_sources` takes what the user typed and gives a `Corpus`. Importing this package is cheap: the
readers come with the first call, and the child process that reads PDFs never needs most of them.
"""

from collections.abc import Callable, Sequence

from hipcli.documents.document import (
    PAGED_KINDS,
    Corpus,
    Document,
    OutlineEntry,
    Page,
    Warning_,
    unit_of,
)
from hipcli.documents.naming import parse_file_list, printable_name
from hipcli.documents.options import PdfLimits, ReadOptions

__all__ = [
    "PAGED_KINDS",
    "Corpus",
    "Document",
    "OutlineEntry",
    "Page",
    "PdfLimits",
    "ReadOptions",
    "Warning_",
    "folder_names",
    "parse_file_list",
    "printable_name",
    "read_again",
    "read_sources",
    "unit_of",
]


def read_sources(
    sources: Sequence[str],
    options: ReadOptions,
    progress: Callable[[int, int, str], None] | None = None,
) -> Corpus:
    """Read files, folders and standard input; see `hipcli.documents.sources.read_sources`."""
    from hipcli.documents import sources as implementation

    return implementation.read_sources(sources, options, progress)


def folder_names(source: str, path: str, options: ReadOptions) -> list[str]:
    """Names of the files in a folder that would be read; see `items.folder_names`."""
    from hipcli.documents import items

    return items.folder_names(source, path, options)


def read_again(named: Sequence[tuple[str, str]], options: ReadOptions) -> Corpus:
    """Read files under names they had before; see `hipcli.documents.sources.read_again`."""
    from hipcli.documents import sources as implementation

    return implementation.read_again(named, options)
