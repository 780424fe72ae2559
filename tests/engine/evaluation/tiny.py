"""A tiny model with a toy tokenizer, and prompts for it."""

import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from hipcli.engine.config import EngineConfig
from hipcli.engine.engine import Engine
from hipcli.engine.tokenizer import load_tokenizer
from hipcli.prompts.whole_text import TextPrompts
from tests.engine import toy_tokenizers
from tests.engine.models import toy_models

TRAINED_TOKENS = 4096


def model_folder(folder: Path) -> Path:
    """A two-layer Llama that says it was trained on 4,096 tokens."""
    toy_models.llama(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"max_position_embeddings": TRAINED_TOKENS}
    path.write_text(json.dumps(config))
    return folder


def sharpen(folder: Path) -> Path:
    """Make the heads of a model folder choose: those that attend everything alike do not vote."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        if "q_proj" in name or "k_proj" in name:
            tensors[name] = tensors[name] * 8
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def tiny_engine(folder: Path, *, sharp: bool = False) -> Engine:
    """An engine over `model_folder`, `sharpen`ed or not."""
    model = model_folder(folder / "tiny")
    if sharp:
        sharpen(model)
    config = EngineConfig(models_dir=folder, model=str(model), device="cpu")
    return Engine.open(config)


def toy_prompts(folder: Path) -> TextPrompts:
    """The product's prompt with a toy tokenizer, no model."""
    return TextPrompts(load_tokenizer(toy_tokenizers.chatml(folder)))
