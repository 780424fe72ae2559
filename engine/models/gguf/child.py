"""The child process that turns one GGUF file into a safetensors folder.

It talks to its parent in JSON lines on stdout: `{"done": 0.4}`, or `{"error": ..., "hint": ...}`
before it exits with 1.
"""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hipcli.engine.errors import HipError, ModelError
from hipcli.engine.models.architectures import check_config
from hipcli.engine.models.gguf.metadata import Metadata
from hipcli.engine.models.gguf.rope import rope_parameters
from hipcli.engine.models.gguf.vocabulary import write_tokenizer
from hipcli.engine.models.quiet import quiet_transformers


def main(arguments: list[str]) -> int:
    """`SOURCE TARGET`: convert and report; returns the exit status."""
    source, target = map(Path, arguments)
    # The GGUF reader draws bars of its own, which nothing switches off; the parent sees only this.
    stdout = sys.stdout

    def say(message: dict[str, Any]) -> None:
        stdout.write(json.dumps(message) + "\n")
        stdout.flush()

    sink = io.StringIO()
    try:
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            convert(source, target, lambda fraction: say({"done": fraction}))
    except HipError as error:
        say({"error": error.message, "hint": error.hint})
        return 1
    except Exception as error:
        # The readers raise many kinds for damaged files; a traceback tells a user nothing.
        kind = type(error).__name__
        say({"error": f"Cannot convert {source.name}: {kind}: {error}", "hint": ""})
        return 1
    return 0


def convert(source: Path, target: Path, report: Callable[[float], None]) -> None:
    """Write `config.json`, `model.safetensors` and the tokenizer's files into `target`.

    Args:
        report: called with the fraction done, roughly by time.

    Raises:
        ModelError: an architecture or tokenizer hip does not run.
    """
    metadata = Metadata.read(source)
    report(0.1)
    with quiet_transformers():
        config = _config(source, metadata)
        report(0.3)
        model = _model(source, config, metadata)
        report(0.85)
        model.save_pretrained(str(target))
        report(0.95)
        write_tokenizer(source, metadata, config, target)
    report(1.0)


def _config(source: Path, metadata: Metadata) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            str(source.parent), gguf_file=source.name, local_files_only=True
        )
    except ValueError as error:
        # Transformers' reader knows fewer architectures than there are files.
        raise ModelError(
            f"{source.name}: the architecture {metadata.architecture} cannot be read from GGUF.",
            hint="Take the model's safetensors version.",
        ) from error
    scaled = rope_parameters(metadata, config.rope_parameters or {}, source.name)
    if scaled is not None:
        config.rope_parameters = scaled
    check_config(config.to_dict(), source.name)
    return config


def _model(source: Path, config: Any, metadata: Metadata) -> Any:
    import torch
    import transformers

    # From 5.24 on a GGUF model stays in its blocks unless told otherwise; before, it never did.
    quantization = getattr(transformers, "GgufConfig", None)
    extra = {"quantization_config": quantization(dequantize=True)} if quantization else {}
    factory: Any = transformers.AutoModelForCausalLM
    model, info = factory.from_pretrained(
        str(source.parent),
        gguf_file=source.name,
        config=config,
        dtype=getattr(torch, metadata.dtype),
        local_files_only=True,
        output_loading_info=True,
        **extra,
    )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(
            f"{source.name} lacks {missing[0]} and {len(missing) - 1} more tensors.",
            hint="Download the file again, or take the model's safetensors version.",
        )
    return model
