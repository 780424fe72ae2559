"""How much of the documents a summary covers: in all, by tenths, and by document."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hipcli.runs.material import Material
from hipcli.summary.sections import Section


def coverage(material: Material, done: Sequence[Section], fit: str) -> dict[str, Any]:
    """`coverage` of the JSON document.

    A token of text is covered when the section it belongs to was gone through and is part of the
    summary. What `--fit` left out is not covered.

    Args:
        material: context, and what was left out of it.
        done: sections that are part of the summary.
        fit: what was kept where something was left out: head, tail or middle.

    Returns:
        fraction, deciles (ten of equal length, first to last), per_input (path, fraction); all
        fractions are 0 to 1.
    """
    context = material.context
    covered = np.zeros(len(context.ids), dtype=bool)
    for section in done:
        covered[section.start_token : section.end_token] = True
    is_text = np.zeros(len(context.ids), dtype=bool)
    for span in context.spans:
        is_text[span.start_token : span.end_token] = True
    tokens = _placed(covered[is_text], material.truncated_tokens, fit)
    return {
        "fraction": _fraction(tokens),
        "deciles": [_fraction(part) for part in np.array_split(tokens, 10)],
        "per_input": [
            {"path": row["path"], "fraction": fraction}
            for row, fraction in zip(
                [row for row in material.inputs if row["tokens"] is not None],
                _of_documents(material, covered & is_text),
                strict=True,
            )
        ],
    }


def _of_documents(material: Material, covered: np.ndarray) -> list[float]:
    documents = material.context.documents
    # Tokens of each document before anything was left out of it.
    totals = [row["tokens"] for row in material.inputs if row["tokens"] is not None]
    return [
        round(int(covered[document.start_token : document.end_token].sum()) / max(total, 1), 4)
        for document, total in zip(documents, totals, strict=True)
    ]


def _placed(kept: np.ndarray, left_out: int, fit: str) -> np.ndarray:
    """`kept` where it stood among all tokens of text, False for those left out."""
    gap = np.zeros(left_out, dtype=bool)
    head = {"tail": 0, "middle": (len(kept) + 1) // 2}.get(fit, len(kept))
    return np.concatenate((kept[:head], gap, kept[head:]))


def _fraction(tokens: np.ndarray) -> float:
    return round(float(tokens.mean()), 4) if len(tokens) else 1.0
