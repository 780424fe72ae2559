"""Counting what `hip inspect` reads without a model of ours: words, or tokens of hosted models."""

from collections.abc import Callable, Iterator

from hipcli.engine.errors import HipError

Counter = Callable[[str], int]

# tiktoken's regular expression gives up on a run of about a million spaces, so text is handed over
# in pieces. A cut may split a token: at most one too many is counted per piece.
PIECE_CHARS = 100_000


def words(text: str) -> int:
    """Words as `wc -w` counts them."""
    return len(text.split())


def hosted_tokens(vocabulary: str) -> Counter:
    """Tokens of `cl100k_base` or `o200k_base`, as hosted models bill them.

    Raises:
        HipError: the vocabulary is not on this machine and could not be fetched.
    """
    import tiktoken

    try:
        encoding = tiktoken.get_encoding(vocabulary)
    except OSError as error:
        raise HipError(
            f"the vocabulary {vocabulary} is not on this machine and could not be fetched",
            "connect once, point TIKTOKEN_CACHE_DIR at a copy, or use --count words",
        ) from error
    return lambda text: sum(len(encoding.encode_ordinary(piece)) for piece in pieces(text))


def pieces(text: str) -> Iterator[str]:
    """`text` in pieces of at most PIECE_CHARS characters, cut after a line where there is one."""
    start = 0
    while start < len(text):
        end = start + PIECE_CHARS
        line_end = text.rfind("\n", start, end)
        if end < len(text) and line_end >= start:
            end = line_end + 1
        yield text[start:end]
        start = end
