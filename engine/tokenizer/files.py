"""What a model folder says about its tokenizer, read without torch or transformers."""

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hipcli.engine.errors import ModelError
from hipcli.engine.json_object import read_json

# Token names that templates may use and whose tokens are never text.
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_CONTROL_LOOK = re.compile(r"<\|.*\|>|<\uff5c.*\uff5c>|</?s>|\[/?[A-Z_]+\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The settings that stand beside `tokenizer.json`.

    Args:
        content_sha256: of `tokenizer.json`, hexadecimal.
        template: the chat template's source, None when the model has none.
        named_tokens: `bos_token`, `eos_token`, ... -> token text.
        add_bos: whether the configuration asks for a BOS; None when it does not say.
        eos_ids: end-of-sequence ids of `generation_config.json`, else of `config.json`.
    """

    content_sha256: str
    template: str | None
    named_tokens: dict[str, str] = field(default_factory=dict)
    add_bos: bool | None = None
    eos_ids: tuple[int, ...] = ()


def read_files(folder: Path, content: bytes) -> TokenizerFiles:
    """Read the settings in `folder`, whose `tokenizer.json` is (or would be) `content`.

    Raises:
        ModelError: a file is not the JSON it should be.
    """
    config = read_json(folder / "tokenizer_config.json")
    named = {**read_json(folder / "special_tokens_map.json"), **config}
    tokens = {name: _token_text(named.get(name)) for name in _NAMED_TOKENS}
    add_bos = config.get("add_bos_token")
    return TokenizerFiles(
        content_sha256=hashlib.sha256(content).hexdigest(),
        template=_template(folder, config),
        named_tokens={name: text for name, text in tokens.items() if text},
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        eos_ids=_eos_ids(folder),
    )


def looks_like_control(token: str, files: TokenizerFiles) -> bool:
    """Whether an added token that its file does not flag as special is control all the same: a
    named token, one the chat template writes, or one spelled like `<|this|>`."""
    if not token.strip() or len(token) < 2:
        return False
    if token in files.named_tokens.values() or _CONTROL_LOOK.fullmatch(token):
        return True
    return files.template is not None and token in files.template


def _token_text(value: Any) -> str:
    """A token as a file writes it: a string, or an object with its `content`."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot read the chat template in {folder}: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) and template.strip() else None


def _eos_ids(folder: Path) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        ids = read_json(folder / name).get("eos_token_id")
        if isinstance(ids, int):
            return (ids,)
        if isinstance(ids, list):
            return tuple(index for index in ids if isinstance(index, int))
    return ()
