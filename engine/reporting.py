"""What an answer's `Result` says of how it came about."""

from collections.abc import Iterator

from hipcli.engine.answering.answerer import Answerer
from hipcli.engine.events import Detail, Event, Notice, Result
from hipcli.engine.forward.runner import Runner
from hipcli.engine.reading.context import Context
from hipcli.engine.request import AskRequest
from hipcli.engine.resident import peak_rss_bytes
from hipcli.engine.store.layout import PAGE_TOKENS
from hipcli.engine.store.pages import KVStore
from hipcli.engine.store.shares import shares_of
from hipcli.engine.store.tiered_store import TieredStore


def tiers_told(store: KVStore) -> Iterator[Event]:
    """How a store of several tiers fared; nothing of one whose pages are all on the device."""
    if not isinstance(store, TieredStore):
        return
    if store.unpinned:
        yield Notice(
            "memory_not_pinned",
            f"main memory could not be pinned for the GPU ({store.unpinned}): keys and values in"
            " it are copied by way of the host, which is slower",
        )
    yield Detail(store.traffic.describe())


def result_of(
    request: AskRequest,
    context: Context,
    answerer: Answerer,
    told: tuple[str, int],
    timings: dict[str, float],
) -> Result:
    """The end of a request.

    Args:
        request: what was asked.
        context: what it was asked about.
        answerer: how it was answered.
        told: the answer, and how many tokens it has.
        timings: seconds, by name.
    """
    answer, count = told
    drafter, total = answerer.drafter, len(request.context_ids)
    return Result(
        answer=answer,
        finish_reason=answerer.finish_reason,
        session=context.session,
        evidence=answerer.evidence,
        context_tokens=total,
        question_tokens=len(request.question_ids),
        cached_tokens=context.cached_tokens,
        prefilled_tokens=total - context.cached_tokens + len(request.question_ids),
        generated_tokens=count,
        mode=answerer.mode,
        reread_tokens=answerer.reread_tokens,
        drafted_tokens=drafter.drafted if drafter else 0,
        accepted_tokens=drafter.accepted if drafter else 0,
        timings=timings,
        memory=_memory(context, answerer.runner, total),
    )


def _memory(context: Context, runner: Runner, total: int) -> dict[str, int]:
    """Bytes by name: keys and values and where they are, and what was taken at most.

    Args:
        total: tokens of the context.
    """
    kept = context.store.kept_pages
    saved = total if kept is None else len(kept) * PAGE_TOKENS
    shares = shares_of(
        context.store,
        context.store.length,
        saved if context.session.complete else 0,
        on_gpu=runner.device.type == "cuda",
    )
    return {
        "kv_bytes": runner.layout.num_bytes(context.store.length),
        "kv_device_bytes": shares.device_bytes,
        "kv_host_bytes": shares.host_bytes,
        "kv_disk_bytes": shares.disk_bytes,
        "kv_resident_bytes": getattr(context.store, "resident_bytes", 0),
        "peak_rss_bytes": peak_rss_bytes(),
        "peak_device_bytes": runner.peak_device_bytes(),
    }
