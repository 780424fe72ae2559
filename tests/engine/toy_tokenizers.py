"""Small tokenizers of the kinds in use, trained on a few lines, written as model folders."""

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
    "{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
LINES = [
    "The harbor was quiet when the night ferry came in, and nobody spoke a word.",
    "def area(width, height):\n    return width * height\n\n\nprint(area(3, 14))\n",
    "system user assistant model im start end of turn inst s",
    "na\u00efve caf\u00e9 \u65e5\u672c\u8a9e \U0001f600 one two three 123 456",
] * 4
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def chatml(folder: Path) -> Path:
    """Byte-level BPE without BOS, as Qwen and SmolLM."""
    backend = _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 400)
    _special(backend, "<|endoftext|>", "<|im_start|>", "<|im_end|>")
    # Not flagged special, though templates write it: Qwen 3's way.
    backend.add_tokens([AddedToken("<|tool|>", normalized=False)])
    return _write(folder, backend, CHATML, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def llama3(folder: Path) -> Path:
    """Byte-level BPE with whole-word look-up and a BOS by the post-processor."""
    split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend = _byte_level(pre_tokenizers.Sequence([split, byte_level]), 400, ignore_merges=True)
    _special(
        backend,
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    )
    _begin_with(backend, "<|begin_of_text|>")
    return _write(
        folder,
        backend,
        LLAMA3,
        bos_token="<|begin_of_text|>",
        eos_token={"__type": "AddedToken", "content": "<|end_of_text|>", "special": True},
    )


def mistral(folder: Path, legacy: bool = False) -> Path:
    """SentencePiece-style BPE with a dummy space; `legacy` puts it in by a normalizer."""
    spec = json.loads(_metaspace(("<unk>", "<s>", "</s>", "[INST]", "[/INST]")).to_str())
    if legacy:
        spec["pre_tokenizer"] = None
        spec["normalizer"] = {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        }
    backend = Tokenizer.from_str(json.dumps(spec))
    _begin_with(backend, "<s>")
    template = None if legacy else MISTRAL
    return _write(folder, backend, template, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def gemma(folder: Path) -> Path:
    """Spaces replaced, none added; plain added tokens that stand for text."""
    backend = _metaspace(("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"))
    spec = json.loads(backend.to_str())
    spec["pre_tokenizer"] = None
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    spec["normalizer"] = replace
    backend = Tokenizer.from_str(json.dumps(spec))
    backend.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("<h1>", normalized=False)])
    _begin_with(backend, "<bos>")
    return _write(folder, backend, GEMMA, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>")


def leaky(folder: Path) -> Path:
    """A vocabulary whose own merges build `</s>`, as conversions from SentencePiece can."""
    folder = mistral(folder)
    spec = json.loads((folder / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    for token in ("<", "/", "s", ">", "</", "s>"):
        vocab.setdefault(token, max(vocab.values()) + 1)
    spec["model"]["merges"] += [["<", "/"], ["s", ">"], ["</", "s>"]]
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    return folder


# Every kind by name; each writes a model folder and returns it.
KINDS = {
    "chatml": chatml,
    "llama3": llama3,
    "mistral": mistral,
    "mistral-legacy": lambda folder: mistral(folder, legacy=True),
    "gemma": gemma,
    "leaky": leaky,
}


def _byte_level(pre_tokenizer, vocab_size: int, ignore_merges: bool = False) -> Tokenizer:
    backend = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(LINES, trainer)
    return backend


def _metaspace(special: tuple[str, ...]) -> Tokenizer:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trained.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=260, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    words = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocab = {word: index for index, word in enumerate(words)}
    merges = [tuple(merge) for merge in model["merges"]]
    unknown = "<unk>"
    backend = Tokenizer(
        models.BPE(vocab, merges, unk_token=unknown, byte_fallback=True, fuse_unk=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    _special(backend, *special)
    return backend


def _special(backend: Tokenizer, *tokens: str) -> None:
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in tokens]
    )


def _begin_with(backend: Tokenizer, bos: str) -> None:
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
    )


def _write(folder: Path, backend: Tokenizer, template: str | None, **named) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
