"""Notebooks: cells as pages, outputs cut, images named, anything else read as text."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hipcli.documents import notebook_reader
from hipcli.documents.content import Content, Hints
from hipcli.documents.refusal import Refusal


def notebook(*cells: dict[str, Any]) -> bytes:
    return json.dumps({"nbformat": 4, "metadata": {}, "cells": list(cells)}).encode()


def code(source: Any, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def read(data: bytes) -> Content:
    return notebook_reader.read(data, Hints())


def cell_texts(content: Content) -> list[str]:
    return [content.text[page.start_char : page.end_char] for page in content.pages]


def test_cells_are_numbered_pages_of_their_kind() -> None:
    content = read(
        notebook(
            {"cell_type": "markdown", "source": ["# Title\n", "words"]},
            code("x = 1\nx"),
            code(""),
        )
    )
    assert cell_texts(content) == ["# Title\nwords", "x = 1\nx", ""]
    assert [(p.number, p.label, p.status) for p in content.pages] == [
        (1, "markdown", "text"),
        (2, "code", "text"),
        (3, "code", "empty"),
    ]


def test_outputs_follow_their_cell() -> None:
    content = read(
        notebook(
            code(
                "plot()",
                {"output_type": "stream", "name": "stdout", "text": ["a\n", "\x1b[31mb\x1b[0m\n"]},
                {"output_type": "execute_result", "data": {"text/plain": "42", "text/html": "<b>"}},
                {
                    "output_type": "display_data",
                    "data": {"image/png": "iVBORw0KGgo=" * 999, "text/plain": "<Figure>"},
                },
                {
                    "output_type": "error",
                    "ename": "KeyError",
                    "evalue": "'k'",
                    "traceback": ["long"],
                },
            )
        )
    )
    assert content.text == "plot()\n[output]\na\nb\n42\n[image: image/png]\nKeyError: 'k'"


def test_long_outputs_are_cut_and_say_so() -> None:
    long = {"output_type": "stream", "text": "x" * 50_000}
    text = read(notebook(code("run()", long), code("next()"))).text
    assert "[output cut: 48,000 more characters]\nnext()" in text
    assert len(text) < 2200


def test_images_in_markdown_are_named() -> None:
    source = f"see ![](data:image/png;base64,{'QUJD' * 500}) here"
    content = read(notebook({"cell_type": "markdown", "source": source}))
    assert content.text == "see ![]([image]) here"


def test_format_three_is_read() -> None:
    cells = [
        {"cell_type": "code", "input": "y = 2", "outputs": [{"output_type": "pyout", "text": "2"}]}
    ]
    data = json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}).encode()
    assert read(data).text == "y = 2\n[output]\n2"


@pytest.mark.parametrize(
    "data",
    [
        b'{"cells": [',
        b'{"cells": 3}',
        b"[1, 2]",
        b"[" * 100_000,
        b"x = 1",
        b'{"cells": ' + b"9" * 10_000 + b"}",
    ],
)
def test_what_is_no_notebook_is_read_as_text(data: bytes) -> None:
    content = read(data)
    assert content.text == data.decode()
    assert content.warnings[0][0] == "notebook_damaged"


def test_nothing_in_it_is_a_refusal() -> None:
    for data in (notebook(), notebook(code("  \n"))):
        with pytest.raises(Refusal, match="white space"):
            read(data)


def test_escaped_surrogates_and_marks() -> None:
    data = b'\xef\xbb\xbf{"cells": [{"cell_type": "raw", "source": "a\\ud800b\\r\\nc"}]}'
    assert read(data).text == "a\ufffdb\nc"


KEYS = [
    *("cells", "cell_type", "source", "outputs", "output_type", "data", "text", "worksheets"),
    *("input", "ename", "text/plain", "image/png", "stream", "error", "code", "nbformat"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS) | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


@settings(max_examples=200, deadline=None)
@given(cells=st.lists(JSON, max_size=5) | JSON)
def test_any_json_gives_text_or_a_refusal(cells: Any) -> None:
    try:
        content = read(json.dumps({"cells": cells}).encode())
    except Refusal:
        return
    content.text.encode("utf-8")
    assert content.text.strip()
    for page in content.pages:
        assert 0 <= page.start_char <= page.end_char <= len(content.text)
