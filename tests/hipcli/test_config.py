"""`hip config` and `hip models show`."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hipcli.config import config_edit, options
from tests.hipcli.fakes import run_hip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_key_has_a_value_and_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_SEED", "7")
    Path("project.toml").write_text('method = "window"\ninclude = ["*.md"]\n')
    words = ["config", "show", "--config", "project.toml", "--strict"]
    rows = {row["key"]: row for row in run_hip(*words, "--json").json["settings"]}
    assert set(rows) == {option.name for option in options.ALL if option.in_file}
    assert (rows["seed"]["value"], rows["seed"]["source"]) == (7, "HIP_SEED")
    assert (rows["method"]["value"], rows["method"]["source"]) == ("window", "project.toml")
    assert (rows["strict"]["value"], rows["strict"]["source"]) == (True, "command line")
    assert rows["max_new_tokens"]["source"] == "default"
    lines = [line.split() for line in run_hip(*words).out.splitlines()]
    assert ["include", '["*.md"]', "project.toml"] in lines
    assert ["gitignore", "true", "default"] in lines


def test_config_path(tmp_path: Path) -> None:
    expected = tmp_path / "hip-config" / "hip" / "config.toml"
    assert run_hip("config", "path").out == f"{expected}\n"
    assert run_hip("config", "path", "--json").json["path"] == str(expected)
    assert run_hip("config").code == 2


FILE = """\
# What we use here
seed = 5  # lucky
include = [ # text
  "a#b.md", # one
] # end
system = \'\'\'
seed = 9  # no statement
\'\'\'
"""


def user_file() -> Path:
    return options.user_config_file()


def test_a_key_is_set_in_its_place_and_the_rest_stays() -> None:
    user_file().parent.mkdir(parents=True)
    user_file().write_text(FILE)
    outcome = run_hip("config", "set", "seed", "7")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", f"written: {user_file()}\n")
    assert user_file().read_text() == FILE.replace("seed = 5", "seed = 7")
    assert run_hip("config", "set", "--quiet", "include", "*.md", "docs").err == ""
    assert run_hip("config", "set", "max-new-tokens", "200").code == 0
    lines = user_file().read_text().splitlines()
    assert lines[2] == 'include = ["*.md", "docs"] # end'
    assert lines[-1] == "max_new_tokens = 200"
    rows = {row["key"]: row for row in run_hip("config", "show", "--json").json["settings"]}
    assert rows["seed"]["value"] == 7
    assert rows["system"]["value"] == "seed = 9  # no statement\n"
    assert run_hip("config", "unset", "seed", "system", "include", "max_new_tokens").code == 0
    assert user_file().read_text() == "# What we use here\n"


def test_values_of_every_kind_in_a_file_that_was_not_there(tmp_path: Path) -> None:
    project = ("--config", "project.toml")
    for words in (
        ["cite", "true"],
        ["temperature", "0.5"],
        ["answer", "reread"],
        ["models_dir", "weights"],
        ["system", 'Say "yes"\n# or \\ no \x7f'],
        ["host_memory", "2GiB"],
    ):
        assert run_hip("config", "set", *project, *words).code == 0
    rows = {
        row["key"]: row for row in run_hip("config", "show", *project, "--json").json["settings"]
    }
    assert (rows["cite"]["value"], rows["temperature"]["value"]) == (True, 0.5)
    assert rows["answer"]["value"] == "reread"
    assert rows["models_dir"]["value"] == str(tmp_path / "weights")
    assert rows["system"]["value"] == 'Say "yes"\n# or \\ no \x7f'
    assert rows["host_memory"]["value"] == "2GiB"
    assert not user_file().exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("max_tokens 200", "there is no key 'max_tokens' (did you mean 'max_new_tokens'?)"),
        ("config x.toml", "there is no key 'config'"),
        ("max_new_tokens many", "max_new_tokens: 'many' is not a whole number"),
        ("budget_tokens 3", "budget_tokens: 3 is too small, the least is 64"),
        ("answer rereed", "did you mean 'reread'?"),
        ("cite perhaps", "cite: 'perhaps' is not true or false"),
        ("seed 1 2", "seed: takes one value, and there are 2"),
        ("host_memory much", "--host-memory: 'much' is not a size"),
        ("method hpi", "did you mean 'hip'?"),
        ("rounds 0", "--rounds 0 goes with --answer attend only"),
        ("seed", "Missing argument 'VALUE...'"),
    ],
)
def test_what_cannot_be_is_not_written(words: str, said: str) -> None:
    outcome = run_hip("config", "set", *words.split())
    assert outcome.code == 2
    assert said in outcome.err
    assert not user_file().exists()


def test_what_the_file_says_already_counts() -> None:
    assert run_hip("config", "set", "answer", "attend").code == 0
    assert run_hip("config", "set", "rounds", "0").code == 0
    assert run_hip("config", "set", "no_cache", "true").code == 0
    outcome = run_hip("config", "set", "refresh", "true")
    assert (outcome.code, "--no-cache and --refresh exclude" in outcome.err) == (2, True)


def test_a_broken_file_is_mended() -> None:
    user_file().parent.mkdir(parents=True)
    user_file().write_text("sede = 5\nseed = 6\n")
    assert "unknown key 'sede'" in run_hip("config", "show").err
    assert run_hip("config", "set", "seed", "7").code == 2
    assert "there is no method in" in run_hip("config", "unset", "method").err
    assert run_hip("config", "unset", "sede").code == 0
    assert user_file().read_text() == "seed = 6\n"
    user_file().write_text("seed = 6\n[tools]\nseed = 7\n")
    assert "has more than keys and values" in run_hip("config", "unset", "tools").err
    user_file().write_text("seed =\n")
    assert "is not valid TOML" in run_hip("config", "unset", "seed").err


LINES = st.sampled_from(
    [
        "# seed = 1\n",
        "\n",
        "  \t\n",
        "a = 1\n",
        "b = 'x#y' # why\r\n",
        'c = """\na = 3\n#"""#\n',
        "d = [\n 1, # one\n]\n",
        '"e" = "\u2028"  # \u2028f = 1\n',
    ]
)


@given(st.lists(LINES, unique=True), st.sampled_from("abcdefg"), st.text(max_size=5) | st.floats())
def test_only_the_key_changes(lines: list[str], key: str, value: str | float) -> None:
    text = "".join(lines)
    before = config_edit.parsed(text)
    assert before is not None
    after = config_edit.with_value(text, key, value)
    # NaN is not itself, but its repr is.
    assert repr(config_edit.parsed(after)) == repr({**before, key: value})
    comments = re.findall("#[^\n]*\n", "".join(line for line in lines if key not in line))
    assert all(comment in after for comment in comments)
    gone = config_edit.without(after, key)
    assert config_edit.parsed(gone) == {name: kept for name, kept in before.items() if name != key}
    if key not in before:
        assert gone == text


def test_models_show(tmp_path: Path) -> None:
    Path("model").mkdir()
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "max_position_embeddings": 128,
    }
    Path("model/config.json").write_text(json.dumps(config))
    Path("model/tokenizer.json").write_text("{}")
    Path("model/model.safetensors").write_bytes(b"\0" * 8)
    outcome = run_hip("models", "show", "./model", "--json")
    assert outcome.code == 0, outcome.err
    model = outcome.json["model"]
    # Two layers, keys and values of two heads with 16 channels, two bytes each; and summaries.
    assert model["kv_bytes_per_token"] == 2 * (2 * 64 + 2) * 32 * 2 // 64
    assert (model["architecture"], model["trained_tokens"], model["fits"]) == ("llama", 128, True)
    assert "kv_bytes_per_token: 260 B\n" in run_hip("models", "show", "./model").out
    assert run_hip("models", "show", "nosuch").code == 1
