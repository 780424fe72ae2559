"""What the engine says while it works: one generator of these events per request.

Order: any number of `Phase`, `Progress`, `Notice` and `Detail`; then `Token`s, maybe a
`Detail`; last one `Result`.
No event holds a tensor, so any front end can print or serialise them.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Phase:
    """Work of a new kind begins: `load`, `prefill`, `vote`, `answer`."""

    name: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Advance inside a phase: `prefill`, or `question` for a long one.

    `cached_tokens` came from a saved session and cost nothing.
    The bytes are those of keys, values and summaries so far: on the GPU, in memory, in files; what
    lies in two of these counts in both. `saved`: a session has what was read.
    """

    phase: str
    done_tokens: int
    cached_tokens: int
    total_tokens: int
    tokens_per_s: float
    eta_s: float | None
    kv_device_bytes: int = 0
    kv_host_bytes: int = 0
    kv_disk_bytes: int = 0
    saved: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know. `code` is stable, `message` is for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Detail:
    """Something that only who asked for more wants to know (`-v`)."""

    message: str


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the answer: complete characters, never half of one. May be empty."""

    token_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A passage the heads voted for: context tokens [start_token, end_token), best first.

    `score` is the logarithm of the passage's votes over those of the best one (0.0 for it).
    """

    start_token: int
    end_token: int
    score: float


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The saved context behind an answer. `id` is empty when nothing was saved."""

    id: str = ""
    name: str = ""
    created: str = ""
    reused: bool = False
    complete: bool = False
    kept_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a request.

    `finish_reason` is stop, length or interrupted; `mode` is how it was answered in the end (dense,
    attend, share, reread); `reread_tokens` are those of the short prompt of a reread, the question
    left out; `drafted_tokens` were guessed, `accepted_tokens` of them rightly; `timings` are
    seconds, `memory` bytes.
    """

    answer: str
    finish_reason: str
    session: SessionInfo
    evidence: tuple[Evidence, ...]
    context_tokens: int
    question_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    generated_tokens: int
    mode: str = ""
    reread_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)


Event = Phase | Progress | Notice | Detail | Token | Result
