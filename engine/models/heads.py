"""What the vote of each head counts: a model's calibration, `heads.json` beside its weights.

It is made by `hipcli.engine.calibration` and read here, without torch. Weights belong to the model
that they were measured with: its digest stands in the file, and a file that is damaged or another
model's is not used. A model that has no such file is looked for among those that hip has measured:
`calibrations/` has a file for each, named by the beginning of the digest.
"""

import hashlib
import json
import os
import struct
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hipcli.engine.errors import ModelError
from hipcli.engine.json_object import read_json
from hipcli.engine.models.digest_cache import weights_digest
from hipcli.engine.sessions.disk import Disk

FILE = "heads.json"
MEASURED = Path(__file__).with_name("calibrations")
SCHEMA_VERSION = 1

Rows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class LookRows:
    """What a second look adds to the logarithm of the votes (`answering/second_look.py`).

    Args:
        likelihood: factor of the log-likelihood of the question.
        words, last: factors of the logarithm of each head's attention to the page, of the
            question's own words together and of its last token, [num_layers][num_heads].
    """

    likelihood: float
    words: Rows
    last: Rows


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A calibration.

    Args:
        weights_digest: of the model, sampled (see `digest_cache.py`).
        weights: what the vote of each head counts, [num_layers][num_heads], 0 or more, mean 1.
        settings: what it was made with, JSON-able.
        measured: what it brings, JSON-able: `recall_1_before` and `recall_1_after`, which part of
            the `held_out` questions have their evidence on the best page.
        look: what a second look counts; None where that was not measured.
    """

    weights_digest: str
    weights: Rows
    settings: dict[str, Any]
    measured: dict[str, Any]
    look: LookRows | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """num_layers, num_heads."""
        return len(self.weights), len(self.weights[0])

    @property
    def digest(self) -> str:
        """Names the weights in results, 16 hexadecimal digits: those of a SHA-256 over fp32."""
        row = [weight for layer in self.weights for weight in layer]
        if self.look is not None:
            row.append(self.look.likelihood)
            row += [
                x for rows in (self.look.words, self.look.last) for layer in rows for x in layer
            ]
        return hashlib.sha256(struct.pack(f"<{len(row)}f", *row)).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class FoundHeads:
    """What a model's folder says of its heads.

    Args:
        heads: the calibration, if there is one that can be used.
        problem: why there is one that cannot, with what to do; empty otherwise.
    """

    heads: HeadWeights | None = None
    problem: str = ""


def find_heads(folder: Path, models_dir: Path | None = None) -> FoundHeads:
    """The calibration beside the weights in a model's folder.

    Args:
        folder: of the model.
        models_dir: where digests of weights are remembered; None remembers none.
    """
    try:
        if not (folder / FILE).exists():
            return FoundHeads(_measured(folder, models_dir))
        heads = read_heads(folder)
        why = _foreign(heads, folder, models_dir)
    except ModelError as error:
        heads, why = None, error.message
    if not why:
        return FoundHeads(heads)
    remedy = "all heads vote alike; hip models calibrate makes it anew"
    return FoundHeads(problem=f"the calibration is not used, {remedy}: {why}")


def _measured(folder: Path, models_dir: Path | None) -> HeadWeights | None:
    """What hip brings for the weights in a folder, if it knows them."""
    digest = weights_digest(folder, models_dir)
    path = MEASURED / f"{digest[:16]}.json"
    if not path.exists():
        return None
    heads = _read(path)
    return heads if heads.weights_digest == digest else None


def _foreign(heads: HeadWeights, folder: Path, models_dir: Path | None) -> str:
    """Why weights are not for the model in a folder; empty if they are."""
    if heads.weights_digest != weights_digest(folder, models_dir):
        return f"{folder / FILE} was made for other weights"
    config = read_json(folder / "config.json")
    config = config.get("text_config", config)
    shape = (config.get("num_hidden_layers"), config.get("num_attention_heads"))
    if heads.shape != shape:
        return f"{folder / FILE} has {heads.shape} layers and heads, the model {shape}"
    return ""


def read_heads(folder: Path) -> HeadWeights:
    """The calibration in a folder, its numbers checked; whose it is, is not.

    Raises:
        ModelError: the file is damaged, or of another version of hip.
    """
    return _read(folder / FILE)


def _read(path: Path) -> HeadWeights:
    record = read_json(path)
    try:
        if record["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"its schema_version is {record['schema_version']}")
        return HeadWeights(
            str(record["weights_digest"]),
            _checked(record["weights"]),
            dict(record["settings"]),
            dict(record["measured"]),
            _look_of(record),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{path} is no calibration: {error}", "run: hip models calibrate"
        ) from None


def _look_of(record: dict[str, Any]) -> LookRows | None:
    look = record.get("look")
    if look is None:
        return None
    words, last = (_rectangle(look[name]) for name in ("words", "last"))
    likelihood = look["likelihood"]
    shape = len(record["weights"]), len(record["weights"][0])
    for weight in (likelihood, *(x for rows in (words, last) for row in rows for x in row)):
        if type(weight) not in (int, float) or not -1e30 < weight < 1e30:
            raise ValueError(f"{str(weight)[:40]} is no weight")
    if any((len(rows), len(rows[0])) != shape for rows in (words, last)):
        raise ValueError("its weights of a second look have another shape")
    return LookRows(likelihood, words, last)


def _rectangle(rows: Any) -> Rows:
    weights = tuple(tuple(row) for row in rows)
    if not weights or not weights[0] or len({len(row) for row in weights}) != 1:
        raise ValueError("its weights are not a rectangle")
    return weights


def _checked(rows: Any) -> Rows:
    """Weights [num_layers][num_heads] as they stand in the file.

    Raises:
        TypeError, ValueError: they are no such numbers.
    """
    weights = _rectangle(rows)
    for weight in (weight for row in weights for weight in row):
        # A number that fp32 cannot hold would be infinite there.
        if type(weight) not in (int, float) or not 0 <= weight < 1e30:
            raise ValueError(f"{str(weight)[:40]} is no weight")
    if not any(map(any, weights)):
        raise ValueError("no head counts")
    return weights


def write_heads(folder: Path, heads: HeadWeights) -> Path:
    """Put a calibration beside the weights: whole, or not at all.

    Raises:
        ModelError: the folder cannot be written to.
    """
    record = {
        "schema_version": SCHEMA_VERSION,
        "weights_digest": heads.weights_digest,
        "settings": heads.settings,
        "measured": heads.measured,
        "weights": heads.weights,
    }
    if heads.look is not None:
        record["look"] = asdict(heads.look)
    try:
        Disk().write(folder / FILE, (json.dumps(record) + "\n").encode())
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder / FILE


def remove_heads(folder: Path) -> bool:
    """Forget a model's own calibration; False if it had none.

    Raises:
        ModelError: the folder cannot be written to.
    """
    try:
        (folder / FILE).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unwritable(folder, error) from error
    return True


def check_writable(folder: Path) -> None:
    """Refuse a folder that takes no file, before minutes of work.

    Raises:
        ModelError: it takes none.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{FILE}.", dir=folder)
        os.close(descriptor)
        os.unlink(name)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> ModelError:
    return ModelError(
        f"cannot write beside the weights in {folder}: {error.strerror}",
        "a calibration lies with its model; copy the model to a folder of your own and name that",
    )
