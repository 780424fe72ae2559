"""Lines of tokens, against a search of the text character by character."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hipcli.prompts import token_lines as module
from hipcli.prompts.token_lines import token_lines


def slow(text: str, start: int, end: int) -> tuple[int, int]:
    visible = [at for at, char in enumerate(text) if not char.isspace()] or [0]
    first = next((at for at in visible if at >= start), visible[-1])
    last = next((at for at in reversed(visible) if at < end), visible[0])
    return text.count("\n", 0, first) + 1, text.count("\n", 0, last) + 1


@pytest.mark.parametrize("stretch", [1, 3, 7, 1 << 18])
@settings(max_examples=80, deadline=None, database=None)
@given(
    text=st.text(st.sampled_from("ab \n\n\t\u3000\u6e2f\U0001f600"), max_size=30),
    cuts=st.sets(st.integers(0, 30)),
)
def test_lines_are_those_of_a_plain_search(text: str, cuts: set[int], stretch: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_STRETCH_CHARS", stretch)
        bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
        offsets = np.array(list(zip(bounds, bounds[1:], strict=False)), np.int32).reshape(-1, 2)
        first, last = token_lines(text, offsets)
        expected = [slow(text, start, end) for start, end in offsets.tolist()]
        assert list(zip(first.tolist(), last.tolist(), strict=True)) == expected


def test_a_character_of_several_tokens_counts_where_it_starts_and_ends() -> None:
    # Three tokens for one character on line 2.
    offsets = np.array([[0, 2], [2, 3], [2, 3], [2, 3], [3, 5]], np.int32)
    first, last = token_lines("a\n\U0001f600\nb", offsets)
    assert (first.tolist(), last.tolist()) == ([1, 2, 3, 3, 3], [1, 1, 1, 2, 3])
