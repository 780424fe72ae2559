"""A question about a part of the context rests on that part alone."""

import pytest

from hipcli.engine.config import CacheConfig
from hipcli.engine.forward.runner import Runner
from tests.engine.test_sessions import CONTEXT_TOKENS, answerer_of, read, request
from tests.engine.tiny import tiny_model


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(tiny_model("llama"))


@pytest.mark.parametrize("mode", ["share", "reread", "auto"])
@pytest.mark.parametrize("focus", [(200, 330), (3, 64), (CONTEXT_TOKENS - 10, CONTEXT_TOKENS)])
def test_evidence_lies_in_the_focus(runner: Runner, mode: str, focus: tuple[int, int]) -> None:
    ask = request(None, focus=focus, answer=mode, cache=CacheConfig(None))
    context, _ = read(runner, ask)
    answerer = answerer_of(runner, context, ask)
    assert len(list(answerer.tokens())) == 12
    assert answerer.evidence
    for passage in answerer.evidence:
        assert focus[0] <= passage.start_token < passage.end_token <= focus[1]
    if mode != "share":
        assert answerer.mode == "reread"


@pytest.mark.parametrize("focus", [(0, 9), (3, CONTEXT_TOKENS + 1), (9, 8)])
def test_a_focus_outside_the_documents_is_refused(focus: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="focus"):
        request(None, focus=focus)
