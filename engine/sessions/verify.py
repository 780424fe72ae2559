"""Comparing a whole session with its checksums: `hip sessions verify`. No torch here."""

from pathlib import Path

from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.sessions.companion import checked_companion, has_companion
from hipcli.engine.sessions.manifest import (
    PARTIAL_SUFFIX,
    PROGRESS,
    WORTH,
    Manifest,
    read_sealed,
    read_tokens,
    read_worth,
)
from hipcli.engine.store.checks import PageChecks, compare_files
from hipcli.engine.store.layout import PAGE_TOKENS, checksum_file, num_pages


def verify_folder(folder: Path) -> int:
    """Read everything that a session's folder holds.

    Returns:
        Tokens whose pages were compared.

    Raises:
        NewerSessionError: it is of a newer format.
        DamagedSessionError: something is not what was written.
    """
    manifest = Manifest.read(folder)
    read_tokens(folder, manifest.tokens_sha256)
    if (folder / WORTH).exists():
        read_worth(folder)
    if has_companion(folder):
        checked_companion(folder)
    tokens = manifest.context_tokens
    if folder.name.endswith(PARTIAL_SUFFIX):
        done = read_sealed(folder / PROGRESS).get("tokens_done")
        if not isinstance(done, int) or not 0 <= done <= tokens:
            raise DamagedSessionError("the progress record is damaged")
        tokens = done
    whole = tokens == manifest.context_tokens
    pages = num_pages(manifest.stored_tokens) if whole else tokens // PAGE_TOKENS
    compare_pages(folder, manifest, pages)
    return tokens


def compare_pages(folder: Path, manifest: Manifest, num_pages_compared: int) -> None:
    """Compare the first pages of all layers with their checksums; raises as `verify_folder`."""
    checks = PageChecks(
        checksum_file(folder),
        num_pages(manifest.stored_tokens),
        manifest.num_layers,
        manifest.seed,
        writable=False,
    )
    sizes = (manifest.page_bytes, manifest.summary_bytes)
    compare_files(folder, num_pages_compared, manifest.num_layers, sizes, checks)
