"""Trains a tiny model with the gates of Infini-attention and shows what its memory recalls.

    python3 benchmarks/infini.py [--steps N] [--segments 2,4,8] [--seed N]

Facts ("key 3 has value 5", one token each) lie anywhere in the text but its last segment, where the
values of some keys are asked. No query can attend a fact: what it answers comes out of the memory.
A minute or so on a CPU. The answers are given by hip's own method `infini`; beside them stands the
same model with its gates closed, which can only guess. Prints a table, then one line of JSON.
This is a synthetic task on a model made for it: it shows that the path works, nothing more.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import hipcli  # noqa: E402  (the checkout is put on the path first)

if find_spec("hipcli.kernels") is None:
    # A checkout that was not installed keeps the lower houses at its top.
    hipcli.__path__.append(str(ROOT))

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy, scaled_dot_product_attention  # noqa: E402
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM  # noqa: E402

from hipcli.engine.forward.rope import IdentityRotary, RopeTables  # noqa: E402
from hipcli.engine.forward.runner import Runner  # noqa: E402
from hipcli.engine.forward.step import StepInput  # noqa: E402
from hipcli.engine.methods.compressive import Memory, mixed  # noqa: E402
from hipcli.engine.methods.configs import InfiniConfig  # noqa: E402
from hipcli.engine.methods.infini import InfiniMethod  # noqa: E402
from hipcli.engine.passes import PrefillPass  # noqa: E402

SEGMENT = 64
KEYS = VALUES = 8
FILLERS = 16
# Token ids: facts, then questions about keys, then values, then filler.
QUESTION = KEYS * VALUES
VALUE = QUESTION + KEYS
FILLER = VALUE + VALUES
VOCAB = FILLER + FILLERS
ASKED = 4
# Published attempts found gates hardly moving at the rate of the weights.
WEIGHT_RATE, GATE_RATE = 3e-3, 3e-2


def make_texts(
    count: int, segments: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts whose last segment asks about facts in the others.

    Returns:
        ids int64 [count, segments * SEGMENT], and places int64 [count, ASKED] of the questions;
        the token after each is the answer.
    """
    length = segments * SEGMENT
    ids = torch.randint(FILLER, VOCAB, (count, length), generator=generator)
    places = torch.empty(count, ASKED, dtype=torch.int64)
    for row in range(count):
        values = torch.randint(0, VALUES, (KEYS,), generator=generator)
        facts = torch.randperm(length - SEGMENT, generator=generator)[:KEYS]
        ids[row, facts] = torch.arange(KEYS) * VALUES + values
        asked = torch.randperm(KEYS, generator=generator)[:ASKED]
        slots = torch.randperm(SEGMENT // 2, generator=generator)[:ASKED] * 2
        places[row] = length - SEGMENT + slots
        ids[row, places[row]] = QUESTION + asked
        ids[row, places[row] + 1] = VALUE + values[asked]
    return ids, places


@dataclass(slots=True)
class Trained:
    """A model, its gates, and what training needs of both.

    Args:
        model: as Transformers makes it, but for its attention and rotary module.
        gates: [num_layers, num_heads], before the sigmoid.
        tables: of the model's own rotary module.
    """

    model: LlamaForCausalLM
    gates: nn.Parameter
    tables: RopeTables

    @classmethod
    def new(cls, seed: int) -> Trained:
        """A model with random weights and gates half open."""
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=SEGMENT,
        )
        model = LlamaForCausalLM(config)
        model.config._attn_implementation = "infini-training"
        rotary = model.model.rotary_emb
        tables = RopeTables.of(rotary, torch.float32, torch.device("cpu"))
        model.model.rotary_emb = IdentityRotary(tables.rotary_dim)
        return cls(model, nn.Parameter(torch.zeros(2, 2)), tables)

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Of all tokens of texts [B, T], differentiable."""
        return self.model(input_ids=ids, use_cache=False, recall=self).logits

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Segment after segment of q, k, v [B, H, T, D], un-rotated: [B, T, H, D]."""
        memory = Memory.empty(tuple(q.shape[:2]), q.shape[3], q.device)
        cos, sin = self.tables.rows(0, SEGMENT)
        outs = []
        for parts in zip(*(x.split(SEGMENT, 2) for x in (q, k, v)), strict=True):
            queries, keys, values = parts
            turned = [turn(x, cos, sin) for x in (queries, keys)]
            local = scaled_dot_product_attention(*turned, values, is_causal=True)
            recalled = memory.read(queries)
            outs.append(mixed(self.gates[layer], recalled.transpose(1, 2), local.transpose(1, 2)))
            memory = memory.updated(keys, values, delta=False)
        return torch.cat(outs, 1)

    def train(self, steps: int, batch: int, generator: torch.Generator) -> float:
        """Train on texts of 2 to 4 segments; the last loss, in nats an answer."""
        groups = [
            {"params": self.model.parameters(), "lr": WEIGHT_RATE},
            {"params": [self.gates], "lr": GATE_RATE},
        ]
        optimizer = torch.optim.Adam(groups)
        last = float("nan")
        for step in range(steps):
            ids, places = make_texts(batch, 2 + step % 3, generator)
            logits = self.logits(ids).gather(1, places.unsqueeze(-1).expand(-1, -1, VOCAB))
            loss = cross_entropy(logits.flatten(0, 1), ids.gather(1, places + 1).flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            last = loss.item()
            if sys.stderr.isatty() and step % 20 == 0:
                print(f"\rstep {step} of {steps}, loss {last:.3f} ", end="", file=sys.stderr)
        return last

    def runner(self) -> Runner:
        """The same weights with hip's attention."""
        self.model.model.rotary_emb = self.tables.rotary
        return Runner(self.model.eval().requires_grad_(False))


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE of the half-split kind: x [..., T, D] at positions 0 .. T - 1."""
    first, second = x.chunk(2, -1)
    length = x.shape[-2]
    return x * cos[:length] + torch.cat((-second, first), -1) * sin[:length]


def training_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    recall: Trained | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention function; `recall` came through the model's keyword arguments."""
    if recall is None:
        raise ValueError("training needs the keyword argument recall")
    return recall.attend(module.layer_idx, query, key, value), None


AttentionInterface.register("infini-training", training_attention)


def engine_logits(runner: Runner, gates: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Logits fp32 [T, VOCAB] of one text, by hip's method `infini`."""
    method = InfiniMethod(InfiniConfig(segment_tokens=SEGMENT, delta_rule=0))
    method.own_attention.gates = gates.detach()
    store = runner.new_store(len(ids))
    step = StepInput(store, runner.tables, PrefillPass(method), 0)
    return runner.logits(ids, step, keep=len(ids))


def recalled(
    runner: Runner, gates: torch.Tensor, segments: int, texts: int, generator: torch.Generator
) -> float:
    """Part of the questions that are answered right in texts of so many segments."""
    ids, places = make_texts(texts, segments, generator)
    right = 0
    for text, asked in zip(ids, places, strict=True):
        answers = engine_logits(runner, gates, text)[asked].argmax(-1)
        right += int((answers == text[asked + 1]).sum())
    return right / places.numel()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--segments", default="2,4,8", help="lengths to test, in segments of 64")
    parser.add_argument("--texts", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(options.seed)
    trained = Trained.new(options.seed)
    began = time.perf_counter()
    loss = trained.train(options.steps, options.batch, generator)
    train_s = time.perf_counter() - began
    runner, closed = trained.runner(), torch.full_like(trained.gates, -40.0)
    print(f"\n{options.steps} steps in {train_s:.0f} s, last loss {loss:.3f}")
    print("segments  recalled  gates closed")
    rows = []
    for segments in map(int, options.segments.split(",")):
        parts = [
            recalled(runner, gates, segments, options.texts, generator)
            for gates in (trained.gates, closed)
        ]
        rows.append({"segments": segments, "recalled": parts[0], "closed": parts[1]})
        print(f"{segments:8}  {parts[0]:7.0%}  {parts[1]:11.0%}")
    gates = torch.sigmoid(trained.gates).tolist()
    print(json.dumps({"steps": options.steps, "train_s": train_s, "gates": gates, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
