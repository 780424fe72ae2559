"""Documents and question to the token ids of a prompt, and from tokens back to page and line."""

from hipcli.prompts.assemble import assemble, question_ids, question_range
from hipcli.prompts.context import (
    Context,
    DocumentSpan,
    Passage,
    TextSpan,
    remembered_documents,
)
from hipcli.prompts.fit import fit
from hipcli.prompts.layout import render

__all__ = [
    "Context",
    "DocumentSpan",
    "Passage",
    "TextSpan",
    "assemble",
    "fit",
    "question_ids",
    "question_range",
    "remembered_documents",
    "render",
]
