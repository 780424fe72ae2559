"""The options of how an answer is found and generated, and of what is shown of its evidence."""

from pathlib import Path

from hipcli.config.option import Option, default_of
from hipcli.engine.config import (
    ANSWER_MODES,
    CPU_DRAFT_TOKENS,
    GPU_DRAFT_TOKENS,
    MAX_DRAFT_TOKENS,
    GenerationConfig,
)

ANSWER = (
    Option(
        "answer",
        str,
        "auto",
        "How the answer is found: attend to the whole context, share its voted "
        "passages, reread them, or let hip choose.",
        choices=ANSWER_MODES,
    ),
    Option(
        "rounds",
        int,
        1,
        "How often the passages of an answer are looked for: from the second time on by what the "
        "best ones name, for questions that take several facts. Each takes its time. 0, with "
        "--answer attend, looks for none: it starts soonest and answers worse.",
        minimum=0,
        metavar="N",
    ),
    Option("cite", bool, False, "After the answer, list the passages it rests on."),
    Option("system", str, None, "System prompt.", metavar="TEXT"),
    Option(
        "max_new_tokens",
        int,
        default_of(GenerationConfig, "max_new_tokens"),
        "Longest answer.",
        ("--max-new-tokens", "-n"),
        minimum=1,
        metavar="N",
    ),
    Option(
        "draft_tokens",
        int,
        default_of(GenerationConfig, "draft_tokens"),
        f"Most tokens guessed from the passages and checked at once, up to {MAX_DRAFT_TOKENS}; 0 "
        "guesses none. The answer is the same up to rounding, quotes come faster (default: "
        f"{CPU_DRAFT_TOKENS} on a processor, {GPU_DRAFT_TOKENS} on a GPU).",
        minimum=0,
        metavar="N",
    ),
    Option(
        "temperature",
        float,
        default_of(GenerationConfig, "temperature"),
        "0 is greedy: the same answer every time.",
        minimum=0,
        metavar="T",
    ),
    Option(
        "seed",
        int,
        default_of(GenerationConfig, "seed"),
        "Seed for a temperature above 0.",
        metavar="N",
    ),
)

EVIDENCE = (
    Option(
        "open_evidence",
        Path,
        None,
        "Write the passages behind the answer, highlighted, to FILE: one page for a browser.",
        metavar="FILE.html",
        in_file=False,
    ),
)
