"""Around the documents: the model's own chat scaffold, what ends an answer, how it streams."""

import json

import pytest
from tokenizers import Tokenizer as Backend

from hipcli.engine.tokenizer import load_tokenizer
from tests.engine import toy_tokenizers as toys
from tests.engine.toy_tokenizers import KINDS


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request, tmp_path_factory):
    return load_tokenizer(KINDS[request.param](tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def chatml(tmp_path_factory):
    return load_tokenizer(toys.chatml(tmp_path_factory.mktemp("chatml")))


class TestScaffold:
    """Compared with transformers' own rendering and encoding of the same conversation."""

    @pytest.mark.parametrize("kind", ["chatml", "llama3", "mistral", "gemma"])
    def test_equals_the_stock_chat_template(self, kind, tmp_path):
        transformers = pytest.importorskip("transformers")
        folder = KINDS[kind](tmp_path)
        stock = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        text = "The harbor was quiet"
        expected = stock.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        tokenizer = load_tokenizer(folder)
        scaffold = tokenizer.scaffold()
        ids = tokenizer.encode(scaffold.lead + text).ids.tolist()
        assert scaffold.template
        # "[INST] The": the template's blank joins the word.
        assert scaffold.lead == (" " if kind == "mistral" else "")
        assert [*scaffold.prefix_ids, *ids, *scaffold.suffix_ids] == expected

    @pytest.mark.parametrize("kind", ["chatml", "llama3", "mistral", "gemma"])
    def test_three_turns_equal_the_stock_chat_template(self, kind, tmp_path):
        transformers = pytest.importorskip("transformers")
        folder = KINDS[kind](tmp_path)
        stock = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        texts = ["The harbor was", "quiet when", "nobody spoke", "a word", "The night"]
        roles = ["user", "assistant"]
        messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
        tokenizer = load_tokenizer(folder)
        scaffold = tokenizer.scaffold()
        cached: list[int] = []
        for turns in (0, 1, 2):
            whole, lead = list(scaffold.prefix_ids), scaffold.lead
            between = tokenizer.turns(turns)
            for place, joint in enumerate(between):
                whole += [*tokenizer.encode(lead + texts[place]).ids.tolist(), *joint.ids]
                lead = joint.lead
            expected = stock.apply_chat_template(
                messages[: 2 * turns + 1],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
            assert whole == expected
            # What was read for an earlier question is how a later prompt begins.
            assert whole[: len(cached)] == cached
            cached = whole
        assert tokenizer.turns(0)[0].ids == scaffold.suffix_ids

    def test_turns_without_a_template(self, tmp_path):
        tokenizer = load_tokenizer(toys.mistral(tmp_path, legacy=True))
        behind_question, behind_answer, last = tokenizer.turns(1)
        assert tokenizer.decode(behind_question.ids).endswith("Answer:")
        assert behind_question.lead == " "
        assert "Answer" not in tokenizer.decode(behind_answer.ids)
        assert last.ids == tokenizer.scaffold().suffix_ids

    @pytest.mark.parametrize("system", [None, "", "Be brief.", "Be <|im_end|></s> brief."])
    def test_exactly_one_bos(self, tokenizer, system):
        scaffold = tokenizer.scaffold(system)
        whole = [*scaffold.prefix_ids, *scaffold.suffix_ids]
        bos = tokenizer.bos_id
        if bos is not None:
            assert whole[0] == bos and whole.count(bos) == 1

    def test_a_bos_the_template_forgets_is_added(self, tmp_path):
        folder = toys.llama3(tmp_path)
        (folder / "chat_template.jinja").write_text(toys.LLAMA3.replace("bos_token + ", ""))
        scaffold = load_tokenizer(folder).scaffold()
        bos = load_tokenizer(folder).bos_id
        assert scaffold.prefix_ids[0] == bos and scaffold.prefix_ids.count(bos) == 1

    def test_the_system_text_is_literal(self, chatml):
        system = "Ignore <|im_end|> this."
        without = chatml.scaffold("Ignore this.").prefix_ids
        scaffold = chatml.scaffold(system)
        ends = chatml.special_ids & set(scaffold.prefix_ids)
        count = sum(index in ends for index in scaffold.prefix_ids)
        assert count == sum(index in ends for index in without)
        literal = chatml.encode(system).ids.tolist()
        joined = list(scaffold.prefix_ids)
        assert any(joined[start : start + len(literal)] == literal for start in range(len(joined)))

    @pytest.mark.parametrize("make", [toys.mistral, toys.gemma])
    def test_a_rejected_system_role_goes_into_the_users_turn(self, make, tmp_path):
        tokenizer = load_tokenizer(make(tmp_path))
        scaffold = tokenizer.scaffold("Be brief.")
        assert scaffold.template
        shown = tokenizer.decode(list(scaffold.prefix_ids))
        assert shown.endswith("Be brief.\n\n")
        assert scaffold.suffix_ids == tokenizer.scaffold().suffix_ids

    def test_a_dropped_system_role_goes_into_the_users_turn(self, tmp_path):
        folder = toys.chatml(tmp_path)
        template = toys.CHATML.replace(
            "{% for message in messages %}",
            "{% for message in messages if message['role'] != 'system' %}",
        )
        (folder / "chat_template.jinja").write_text(template)
        tokenizer = load_tokenizer(folder)
        shown = tokenizer.decode(list(tokenizer.scaffold("Be brief.").prefix_ids))
        assert shown == "user\nBe brief.\n\n"

    @pytest.mark.parametrize(
        "template",
        ["{{ broken", "no user text", "{{ messages[0].content }}{{ messages[0].content }}"],
    )
    def test_an_unusable_template_gives_the_plain_scaffold(self, tmp_path, template):
        folder = toys.chatml(tmp_path)
        (folder / "chat_template.jinja").write_text(template)
        tokenizer = load_tokenizer(folder)
        scaffold = tokenizer.scaffold("Be brief.")
        assert not scaffold.template
        assert tokenizer.decode(list(scaffold.prefix_ids)) == "Be brief.\n\n"
        assert tokenizer.decode(list(scaffold.suffix_ids)) == "\n\nAnswer:"

    def test_no_template_keeps_the_bos(self, tmp_path):
        tokenizer = load_tokenizer(toys.mistral(tmp_path, legacy=True))
        scaffold = tokenizer.scaffold()
        assert not scaffold.template and scaffold.prefix_ids == (tokenizer.bos_id,)

    def test_templates_cannot_reach_out_of_the_sandbox(self, tmp_path):
        folder = toys.chatml(tmp_path)
        attack = "{{ messages.__class__.__mro__[1].__subclasses__() }}{{ messages[0].content }}"
        (folder / "chat_template.jinja").write_text(attack)
        scaffold = load_tokenizer(folder).scaffold()
        assert not scaffold.template

    def test_helpers_of_the_field(self, tmp_path):
        folder = toys.chatml(tmp_path)
        template = (
            "{% for m in messages %}\n    {% if m.role == 'other' %}{% continue %}{% endif %}\n"
            "{{ strftime_now('%Y') }} {{ {'a': '<'} | tojson }} "
            "{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}"
        )
        (folder / "chat_template.jinja").unlink()
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config["chat_template"] = [
            {"name": "tool_use", "template": "x"},
            {"name": "default", "template": template},
        ]
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = load_tokenizer(folder)
        scaffold = tokenizer.scaffold()
        assert scaffold.template
        shown = tokenizer.decode(list(scaffold.prefix_ids)) + scaffold.lead
        assert shown == '2024 {"a": "<"} '


class TestStop:
    @pytest.mark.parametrize(
        "kind, expected",
        [
            ("chatml", {"<|im_end|>"}),
            ("llama3", {"<|end_of_text|>", "<|eot_id|>"}),
            ("mistral", {"</s>", "[/INST]"}),
            ("gemma", {"<eos>", "<end_of_turn>"}),
        ],
    )
    def test_eos_and_end_of_turn(self, kind, expected, tmp_path):
        folder = KINDS[kind](tmp_path)
        backend = Backend.from_file(str(folder / "tokenizer.json"))
        ids = {backend.token_to_id(token) for token in expected}
        assert load_tokenizer(folder).stop_ids == ids

    @pytest.mark.parametrize("value", [3, [3, 4]])
    def test_the_generation_configuration_adds_its_own(self, value, tmp_path):
        folder = toys.chatml(tmp_path)
        plain = load_tokenizer(folder).stop_ids
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
        added = {value} if isinstance(value, int) else set(value)
        assert load_tokenizer(folder).stop_ids == plain | added


class TestStream:
    def test_complete_characters_only(self, tokenizer):
        text = "na\u00efve caf\u00e9 \u65e5\u672c\u8a9e \U0001f600 end"
        stream = tokenizer.stream()
        pushed = [stream.push(int(index)) for index in tokenizer.encode(text).ids]
        assert all("\ufffd" not in part for part in pushed)
        assert "".join(pushed) == text and stream.flush() == ""

    def test_an_unfinished_character_is_flushed(self, tokenizer):
        ids = tokenizer.encode("x\U0001f680").ids
        stream = tokenizer.stream()
        shown = "".join(stream.push(int(index)) for index in ids[:-1])
        assert shown == "x" and stream.flush() == "\ufffd"

    def test_control_tokens_and_padding_ids_are_not_shown(self, chatml):
        stream = chatml.stream()
        assert [stream.push(index) for index in sorted(chatml.stop_ids)] == [""]
        assert stream.push(chatml.vocab_size + 7) == ""
        assert chatml.decode([*chatml.stop_ids, chatml.vocab_size + 7]) == ""

    def test_the_dummy_space_before_an_answer_is_dropped_once(self, tmp_path):
        tokenizer = load_tokenizer(toys.mistral(tmp_path))
        stream = tokenizer.stream()
        ids = tokenizer.encode(" Hello  you").ids
        assert "".join(stream.push(int(index)) for index in ids) == "Hello  you"
