"""What git says is in a folder: `git ls-files -co --exclude-standard`, without side effects."""

import os
import shutil
import subprocess

# The repository may be a stranger's. `fsmonitor` would run a program it names; with no transport
# allowed, nothing can be fetched that a partial clone lacks.
_SAFE = (
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.quotePath=false",
    "-c",
    "protocol.allow=never",
    "-c",
    "core.sshCommand=false",
    "--no-pager",
    "--no-optional-locks",
)
_TIMEOUT_S = 120.0


def list_files(root: str) -> list[str] | None:
    """Paths under `root` that git tracks or would add, relative to it.

    Args:
        root: absolute path of a folder.

    Returns:
        Paths with "/" between parts and surrogate escapes for bytes that are not UTF-8, in no
        certain order; repositories within have a "/" at the end or are folders. None where git's
        rules do not apply: no git, no work tree, or a folder that git ignores as a whole, so that
        naming it says more than the rule.
    """
    top = find_top(root)
    found = shutil.which("git")
    if top is None or found is None:
        return None
    # It runs in `root`: a relative entry of PATH must not find a program there.
    git = os.path.abspath(found)
    # Naming both keeps `core.worktree` and variables such as GIT_DIR, which are set inside hooks,
    # from answering for another repository.
    command = [git, *_SAFE, f"--git-dir={os.path.join(top, '.git')}", f"--work-tree={top}"]
    listing = _run([*command, "ls-files", "-co", "--exclude-standard", "-z"], root)
    if listing is None or listing.returncode != 0:
        return None
    paths = [os.fsdecode(path) for path in listing.stdout.split(b"\0") if path]
    if not paths and os.path.realpath(top) != os.path.realpath(root):
        ignored = _run([*command, "check-ignore", "-q", "--", "."], root)
        if ignored is not None and ignored.returncode == 0:
            return None
    return list(dict.fromkeys(path.rstrip("/") for path in paths))


def find_top(folder: str) -> str | None:
    """The folder with `.git` that `folder` is in, or None."""
    folder = os.path.realpath(folder)
    while True:
        dot_git = os.path.join(folder, ".git")
        # A file in a linked work tree or submodule; a folder that is no repository has no HEAD.
        if os.path.isfile(dot_git) or os.path.isfile(os.path.join(dot_git, "HEAD")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _run(command: list[str], folder: str) -> "subprocess.CompletedProcess[bytes] | None":
    try:
        return subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
