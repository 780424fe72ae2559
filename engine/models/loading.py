"""Loading a model, checked before and after.

On a CPU models of the most common kinds are built without Transformers (`decoder.py`); all others
are Transformers' own classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hipcli.engine.errors import DoesNotFitError, ModelError, UsageError
from hipcli.engine.json_object import read_json
from hipcli.engine.models.architectures import check_config
from hipcli.engine.models.digest_cache import weights_digest
from hipcli.engine.models.folders import ModelFolder, check_folder, weight_files
from hipcli.engine.models.quiet import quiet_transformers

DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "fp32": "float32",
    "float32": "float32",
}


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model in memory.

    Args:
        model: Transformers' causal language model with its stock attention, or a `Decoder`, which
            `Runner` runs alike; in eval mode, without gradients.
        config: its configuration object.
        weights_digest: see `weights.py`.
        dtype: `bfloat16`, `float16` or `float32`.
        device: `cpu`, `cuda:0`, ...
    """

    model: Any
    config: Any
    weights_digest: str
    dtype: str
    device: str


def load(
    folder: ModelFolder,
    *,
    device: str = "auto",
    dtype: str = "auto",
    models_dir: Path | None = None,
    verify_weights: bool = False,
) -> LoadedModel:
    """Load a model's weights.

    Args:
        device: `auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`.
        dtype: `auto` (see `pick_dtype`) or one of `DTYPES`.
        models_dir, verify_weights: see `digest_cache.weights_digest`.

    Raises:
        ModelError: files missing or damaged, tensors missing, an architecture hip does not run.
        DoesNotFitError: the device's memory is too small.
        UsageError: an unknown dtype or a device that is not there.
    """
    check_folder(folder.path)
    check_config(read_json(folder.path / "config.json"), folder.name)
    identity = weights_digest(folder.path, models_dir, verify=verify_weights)
    device = pick_device(device)
    dtype = pick_dtype(dtype, device, models_dir)
    model = _built(folder, dtype) if device == "cpu" else None
    if model is None:
        model = _from_pretrained(folder, device, dtype)
    check_config(model.config.to_dict(), folder.name)
    _check_structure(model, folder.name)
    model.eval().requires_grad_(False)
    return LoadedModel(model, model.config, identity, dtype, device)


def pick_device(device: str) -> str:
    """`auto` resolved, `cuda` given its number, and what was asked for checked to exist."""
    import torch

    count = torch.cuda.device_count()
    if device == "auto":
        return "cuda:0" if count else "cpu"
    kind, _, number = device.partition(":")
    if kind == "cpu" and not number:
        return "cpu"
    if kind != "cuda" or (number and not number.isdigit()):
        raise UsageError(f"--device {device}: unknown device.", hint="Use auto, cpu or cuda[:N].")
    if int(number or 0) >= count:
        raise UsageError(
            f"--device {device}: this machine has {count} usable CUDA devices.",
            hint="Use --device auto, or look at `hip doctor`.",
        )
    return f"cuda:{int(number or 0)}"


def pick_dtype(dtype: str, device: str, models_dir: Path | None = None) -> str:
    """`auto` resolved: bf16 on a GPU (fp16 where it has none) and on CPUs that are fast with it,
    else fp32.

    Args:
        dtype: `auto` or one of `DTYPES`.
        device: as `pick_device` returns it.
        models_dir: where is remembered what had to be measured.
    """
    import torch

    from hipcli.engine.cpu.dtype import Processor, prefers_bf16

    if dtype != "auto":
        if dtype not in DTYPES:
            raise UsageError(
                f"--dtype {dtype}: unknown dtype.", hint=f"Use auto, {', '.join(DTYPES)}."
            )
        return DTYPES[dtype]
    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    return "bfloat16" if prefers_bf16(Processor.here(), models_dir) else "float32"


def _built(folder: ModelFolder, dtype: str) -> Any:
    """A `Decoder`, or None for a model that Transformers has to load, or to refuse."""
    import torch

    from hipcli.engine.models.decoder import read_decoder

    record = read_json(folder.path / "config.json")
    return read_decoder(record, weight_files(folder.path), getattr(torch, dtype))


def _from_pretrained(folder: ModelFolder, device: str, dtype: str) -> Any:
    import torch

    try:
        with quiet_transformers():
            import transformers

            factory: Any = transformers.AutoModelForCausalLM
            model, info = factory.from_pretrained(
                str(folder.path),
                dtype=getattr(torch, dtype),
                device_map=None if device == "cpu" else {"": device},
                attn_implementation="sdpa",
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except torch.cuda.OutOfMemoryError as error:
        size = sum(file.stat().st_size for file in weight_files(folder.path))
        raise DoesNotFitError(
            f"The weights of {folder.name} ({size / 2**30:.1f} GiB as stored) do not fit {device}.",
            hint="Use a smaller model, --dtype bf16, or --device cpu.",
        ) from error
    except Exception as error:
        # Transformers and safetensors raise many kinds for damaged or foreign files.
        raise ModelError(
            f"Cannot load {folder.name} from {folder.path}: {error}", hint="Pull it again."
        ) from error
    _check_tensors(info, folder)
    return model


def _check_tensors(info: dict[str, Any], folder: ModelFolder) -> None:
    """Refuse weights that leave part of the model random, or that the model leaves out."""
    missing = sorted(info.get("missing_keys") or ())
    extra = sorted(key for key in info.get("unexpected_keys") or () if ".layers." in key)
    odd = sorted(str(key) for key in info.get("mismatched_keys") or ())
    for keys, what in (
        (missing, "lacks"),
        (odd, "has the wrong shape for"),
        (extra, "has more layers than its config.json says, such as"),
    ):
        if keys:
            raise ModelError(
                f"{folder.path} {what} {keys[0]}"
                + (f" and {len(keys) - 1} more tensors." if len(keys) > 1 else "."),
                hint="Pull the model again: its files do not belong together.",
            )


def _check_structure(model: Any, name: str) -> None:
    """The places where hip takes hold of a model are there."""
    decoder = getattr(model, "model", None)
    layers = getattr(decoder, "layers", None)
    if not hasattr(decoder, "rotary_emb") or not layers:
        raise ModelError(
            f"{name}: this transformers version builds {type(model).__name__} in a way hip does "
            "not know.",
            hint="Install a version named in hip's README.",
        )
