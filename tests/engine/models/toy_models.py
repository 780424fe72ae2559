"""Tiny random models, written as the files real ones come in."""

import json
import re
import zipfile
from pathlib import Path

import numpy as np

from tests.engine import toy_tokenizers as toys

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 64, 4, 2, 16


def llama(folder: Path, tokenizer=toys.chatml, tied: bool = False, **settings) -> Path:
    """A two-layer Llama with a toy tokenizer; fp32 safetensors."""
    import torch
    import transformers

    tokenizer(folder)
    tokens, _ = _tokens(folder)
    named = json.loads((folder / "tokenizer_config.json").read_text())
    config = transformers.LlamaConfig(
        vocab_size=max(tokens.values()) + 1,
        bos_token_id=tokens.get(named.get("bos_token")),
        eos_token_id=tokens[named["eos_token"]],
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        **settings,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return folder


def gguf(path: Path, source: Path, **keys) -> Path:
    """The Llama of `source` as a GGUF file with fp32 tensors, as llama.cpp's converter lays it
    out. `keys` override or (None) leave out entries, `__` standing for a dot."""
    import gguf as library
    from safetensors.numpy import load_file

    config = json.loads((source / "config.json").read_text())
    named = json.loads((source / "tokenizer_config.json").read_text())
    tokens, kinds = _tokens(source)
    ordered = sorted(tokens, key=tokens.__getitem__)
    writer = library.GGUFWriter(str(path), keys.pop("architecture", "llama"))
    values = _gguf_keys(config, named, tokens)
    values |= {
        "tokenizer.chat_template": (source / "chat_template.jinja").read_text(),
        **{key.replace("__", "."): value for key, value in keys.items()},
    }
    factors = values.pop("factors", None)
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    writer.add_array("tokenizer.ggml.tokens", ordered)
    writer.add_array("tokenizer.ggml.token_type", [kinds[token] for token in ordered])
    model = json.loads((source / "tokenizer.json").read_text())["model"]
    if values["tokenizer.ggml.model"] == "gpt2":
        merges = [" ".join(merge) for merge in model["merges"]]
        writer.add_array("tokenizer.ggml.merges", merges)
    else:
        # SentencePiece keeps scores, from which the merges follow: the best first.
        ranks = {"".join(merge): -1.0 - rank for rank, merge in enumerate(model["merges"])}
        writer.add_array("tokenizer.ggml.scores", [ranks.get(token, -1e6) for token in ordered])
    for name, tensor in load_file(source / "model.safetensors").items():
        writer.add_tensor(_gguf_name(name), _gguf_layout(name, tensor))
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def wheel(folder: Path, package: str, version: str, member: str, content: bytes) -> Path:
    """A wheel that carries one file."""
    stem = f"{package.replace('-', '_')}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        archive.writestr(f"{stem}.dist-info/METADATA", metadata)
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{stem}.dist-info/WHEEL", tags)
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def _gguf_keys(config: dict, named: dict, tokens: dict[str, int]) -> dict:
    return {
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.rope.freq_base": 10_000.0,
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.eos_token_id": tokens[named["eos_token"]],
        "tokenizer.ggml.bos_token_id": tokens.get(named.get("bos_token")),
        "tokenizer.ggml.unknown_token_id": tokens.get(named.get("unk_token")),
    }


def _tokens(folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Token -> id, and token -> kind as GGUF numbers them."""
    spec = json.loads((folder / "tokenizer.json").read_text())
    tokens = dict(spec["model"]["vocab"])
    kinds = {token: 6 if re.fullmatch("<0x..>", token) else 1 for token in tokens}
    for entry in spec["added_tokens"]:
        tokens[entry["content"]] = entry["id"]
        kinds[entry["content"]] = 3 if entry["special"] else 4
    return tokens, kinds


def _gguf_name(name: str) -> str:
    parts = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers.": "blk.",
        "self_attn.o_proj": "attn_output",
        "self_attn.": "attn_",
        "_proj": "",
        "mlp.": "ffn_",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for old, new in parts.items():
        name = name.replace(old, new)
    return name


def _gguf_layout(name: str, tensor: np.ndarray) -> np.ndarray:
    """llama.cpp rotates neighbours, so its files hold the rows of Q and K interleaved."""
    heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else 0
    if not heads:
        return tensor
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, tensor.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
