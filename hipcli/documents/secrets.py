"""Passwords and keys within files that are read: named by kind and line, never shown.

What looks like a secret by its name is left out of folders (`skip_rules`). What stands in the
middle of a program cannot be left out without losing the program: there the user is warned.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence

from hipcli.documents.document import Document, Warning_, unit_of
from hipcli.documents.naming import joined

# Shapes that nothing but a secret has: the issuer's own prefix, then as many random characters.
_KINDS = (
    ("an AWS access key", r"(?:AKIA|ASIA)[0-9A-Z]{16}"),
    ("a GitHub token", r"gh[pousr]_[0-9A-Za-z]{36,255}|github_pat_[0-9A-Za-z_]{60,255}"),
    ("a GitLab token", r"glpat-[0-9A-Za-z_-]{20,64}"),
    ("a Slack token", r"xox[abprs]-[0-9A-Za-z-]{20,250}"),
    ("a Google API key", r"AIza[0-9A-Za-z_-]{35}"),
    ("a Stripe key", r"[rs]k_live_[0-9A-Za-z]{20,247}"),
    ("an API key", r"sk-(?:ant-|proj-)?[0-9A-Za-z_-]{40,250}"),
    ("a Hugging Face token", r"hf_[0-9A-Za-z]{34}"),
    ("a PyPI token", r"pypi-AgEI[0-9A-Za-z_-]{50,500}"),
    # The line alone stands in every program that looks for it.
    (
        "a private key",
        r"-----BEGIN (?:[A-Z0-9]{1,9} ){0,3}PRIVATE KEY(?: BLOCK)?-----(?:\\[rn]|\s){1,4}"
        r"[0-9A-Za-z+/=]{32}",
    ),
)
_SECRET = re.compile(r"(?<![0-9A-Za-z_-])(?:" + "|".join(f"({kind})" for _, kind in _KINDS) + ")")
# Keys of documentation say so.
_EXAMPLE = re.compile(r"EXAMPLE|x{6}|X{6}|\.\.\.|0{12}|1234567890|placeholder", re.IGNORECASE)
_MAX_A_FILE = 3


def find_secrets(text: str) -> list[tuple[str, int]]:
    """Kind and line of what looks like a secret in a text, the first few of them."""
    found: list[tuple[str, int]] = []
    newlines: list[int] | None = None
    for match in _SECRET.finditer(text):
        if _EXAMPLE.search(match[0]):
            continue
        if newlines is None:
            newlines = [at.start() for at in re.finditer("\n", text)]
        found.append((_KINDS[(match.lastindex or 1) - 1][0], bisect_right(newlines, match.start())))
        if len(found) == _MAX_A_FILE:
            break
    return [(kind, line + 1) for kind, line in found]


def secret_warnings(inputs: Sequence[Document]) -> list[Warning_]:
    """One warning for files left out as secrets, one for secrets in files that are read.

    Args:
        inputs: in order.
    """
    left_out = [document for document in inputs if document.code == "secret"]
    inside = [
        (document, kind, _where(document, line))
        for document in inputs
        for kind, line in find_secrets(document.text)
    ]
    warnings = []
    if left_out:
        message = (
            f"left out, because they look like secrets: {_listed([d.name for d in left_out])} "
            "(name a file itself to read it)"
        )
        warnings.append(Warning_("secrets_skipped", message, ""))
    if inside:
        places = [f"{document.name}, {where}: {kind}" for document, kind, where in inside]
        message = (
            "what is read holds what looks like a secret; leave the file out with --exclude, or "
            f"take the secret out\n{joined(places)}"
        )
        warnings.append(Warning_("secrets_inside", message, inside[0][0].path))
    return warnings


def _where(document: Document, line: int) -> str:
    """A line of a document's text in words; of a PDF its page."""
    if not document.pages:
        return f"line {line}"
    at = -1
    for _ in range(line - 1):
        at = document.text.index("\n", at + 1)
    page = document.page_at(at + 1)
    return f"{unit_of(document.kind)} {page.number}" if page else f"line {line}"


def _listed(names: list[str]) -> str:
    more = len(names) - 5
    return ", ".join(names[:5]) + (f" and {more:,} more" if more > 0 else "")
