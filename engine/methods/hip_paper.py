"""InfiniteHiP as published: three stages of halving, one list of blocks for all heads.

Stage 1 cuts the context into chunks of 256 tokens, stage 2 what it keeps into chunks of 32, stage 3
into blocks of 8. In every stage each query head looks for a chunk's representative by halving: it
scores one key of the left half and one of the right, and goes on in the better half. A chunk scores
the best that any head and any query of the block found; the best chunks go on. In the first layers
chunks stand at the positions 0, 1, 2, ... while they are scored, in the others every key stands at
one distance, just beyond the window. While an answer is generated stages run again every 16th, 8th
and 4th token, each from the candidates that the stage before it left.

Source: InfiniteHiP (arXiv 2502.08910, sections 3.1 to 3.4, appendices A and F). Its text and its
released results differ in the key that is scored: `middle_probes=1` takes the middle token of each
half and the best score met on the way, as the results were made; 0 takes the first token of each
half and scores the one that is left, as the text says. In both, queries are averaged by fours in
stages 1 and 2. Where we differ: windows begin on the grid of pages for a whole block of queries, so
candidates never reach into a window; when a window moves on, all stages run again; sinks and
selected blocks are packed from position 0. A question's tokens share a list in blocks of 64 as a
document's do. What holds of the laws: all of them but one; a token of an answer is selected for
alone, so it differs from the same token read in a block.
Cost: 18 keys of every 256 for each query head and block of queries, then of a constant number.
"""

from dataclasses import dataclass, field

import torch
from torch.nn.functional import pad

from hipcli.engine.forward.step import Step, StepInput
from hipcli.engine.methods.base import Kernels
from hipcli.engine.methods.configs import HipPaperConfig
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.methods.halving import Stage, best_chunks
from hipcli.engine.store.pages import PAGE_TOKENS

QUERY_STRIDE = 4


@dataclass(slots=True)
class _LayerCache:
    """What a layer keeps between two tokens of an answer.

    Args:
        position, window_start: of the token it was last brought up to date for.
        steps: tokens since everything was chosen.
        inputs: candidates that the first stages left for stages 2 and 3.
        blocks: int32 [n], the final list.
    """

    position: int = -1
    window_start: int = -1
    steps: int = 0
    inputs: list[torch.Tensor] = field(default_factory=list)
    blocks: torch.Tensor | None = None


@dataclass(slots=True)
class HipPaperMethod(Kernels):
    """See the module. Holds the selections of one running answer; `reset` forgets them."""

    config: HipPaperConfig = field(default_factory=HipPaperConfig)
    name: str = "hip-paper"
    follows_votes: bool = False
    decode_graphs: bool = False
    reads_quantised: bool = False
    reads_tiers: bool = False
    prefill_block_size_k: int = field(init=False)
    _cache: dict[int, _LayerCache] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prefill_block_size_k = self.config.block_tokens

    @property
    def geometry(self) -> Geometry:
        config = self.config
        return Geometry.covered(config.sink_tokens, config.window_tokens, config.budget_tokens)

    @property
    def block_size_k(self) -> int:
        return self.config.block_tokens

    @property
    def token_pages(self) -> int:
        return 0

    @property
    def token_blocks(self) -> int:
        return self._budget_tokens(0) // self.config.block_tokens

    def _budget_tokens(self, layer: int) -> int:
        config = self.config
        factor = config.first_layers_factor if layer < config.first_layers else 1
        return config.budget_tokens * factor

    def reset(self) -> None:
        """Forget what the last answer selected."""
        self._cache.clear()

    def _stages(self, layer: int) -> list[Stage]:
        config = self.config
        sizes = (config.chunk_tokens, config.middle_chunk_tokens, config.block_tokens)
        budget = self._budget_tokens(layer)
        kept = (
            max(config.first_kept_tokens, budget),
            max(config.second_kept_tokens, budget),
            budget,
        )
        strides = (QUERY_STRIDE, QUERY_STRIDE, 1)
        return [
            Stage(
                chunk_tokens=size,
                kept_chunks=-(-tokens // size),
                query_stride=stride,
                by_index=layer < config.first_layers,
                middle_probes=config.middle_probes == 1,
            )
            for size, tokens, stride in zip(sizes, kept, strides, strict=True)
        ]

    def _choose(
        self,
        layer: int,
        q: torch.Tensor,
        window_starts: torch.Tensor,
        step: Step,
        inputs: list[torch.Tensor],
    ) -> torch.Tensor:
        """Blocks for each query block, after the stages that `inputs` has no result of.

        Args:
            layer: index of the layer.
            q: [num_q_blocks, rows, num_heads, head_dim], un-rotated.
            window_starts: int32 [num_q_blocks], all above 0.
            step: the pass.
            inputs: candidates of stages 2, 3: those there are; the others are added.

        Returns:
            int32 [num_q_blocks, n] in units of `block_tokens`, ascending, -1 for the unused tail.
        """
        stages, sinks = self._stages(layer), self.config.sink_tokens
        chosen = torch.empty(0)
        for number in range(len(inputs), len(stages)):
            stage = stages[number]
            if number == 0:
                starts = torch.arange(
                    sinks, int(window_starts.max()), stage.chunk_tokens, device=q.device
                ).expand(len(q), -1)
                starts = starts.masked_fill(starts >= window_starts[:, None], -1)
            else:
                starts = stage.split(inputs[number - 1], stages[number - 1].chunk_tokens)
                starts = starts.masked_fill(starts >= window_starts[:, None], -1)
            window = self.config.window_tokens
            chosen = best_chunks(layer, q, starts, window_starts, window, stage, step)
            if number + 1 < len(stages):
                inputs.append(chosen)
        blocks = torch.div(chosen, self.config.block_tokens, rounding_mode="floor")
        return blocks.int()

    def _for_all_heads(self, blocks: torch.Tensor, step: Step) -> torch.Tensor:
        """[N, n] -> [N, num_kv_heads, n]: every KV head has the same list."""
        heads = step.store.layout.num_kv_heads
        return blocks.unsqueeze(1).expand(-1, heads, -1).contiguous()

    def select_prefill(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: StepInput
    ) -> torch.Tensor:
        """See `Method.select_prefill`."""
        missing = len(window_starts) * PAGE_TOKENS - len(q)
        # A repeated query changes no maximum, and the mean of the last four only a little.
        padded = torch.cat((q, q[-1:].expand(missing, -1, -1))) if missing else q
        blocks = self._choose(
            layer, padded.unflatten(0, (-1, PAGE_TOKENS)), window_starts, step, []
        )
        return self._for_all_heads(blocks, step)

    def select_question(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: StepInput
    ) -> torch.Tensor:
        """See `Method.select_question`: tokens of a block of 64 share a list."""
        lists, end, low = [], step.start + len(q), 0
        while low < len(q):
            position = step.start + low
            high = min(end, (position // PAGE_TOKENS + 1) * PAGE_TOKENS) - step.start
            if self.geometry.window_start(position) == 0:
                chosen = torch.empty((1, 0), dtype=torch.int32, device=q.device)
            else:
                rows, starts = q[low:high].unsqueeze(0), window_starts[low : low + 1]
                chosen = self._choose(layer, rows, starts, step, [])
            lists.append(self._for_all_heads(chosen, step).expand(high - low, -1, -1))
            low = high
        width = max(chosen.shape[2] for chosen in lists)
        return torch.cat([pad(chosen, (0, width - chosen.shape[2]), value=-1) for chosen in lists])

    def choose_pages(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Never called: stages are not those of the shared decoder."""
        raise NotImplementedError("hip-paper chooses chunks in three stages")

    def choose_blocks(
        self, layer: int, q: torch.Tensor, pages: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Never called, as `choose_pages`."""
        raise NotImplementedError("hip-paper chooses chunks in three stages")

    def select_token(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor | None:
        """See `Method.select_token`."""
        window_start = self.geometry.window_start(step.start)
        if window_start == 0:
            return None
        cache = self._cache.setdefault(layer, _LayerCache())
        if cache.window_start != window_start or cache.position + 1 != step.start:
            cache.inputs, cache.steps, cache.window_start = [], 0, window_start
        kept_stages = self._stages_to_keep(cache.steps)
        cache.position, cache.steps = step.start, cache.steps + 1
        if kept_stages < 3 or cache.blocks is None:
            del cache.inputs[kept_stages:]
            starts = step.store.filled(window_start)
            cache.blocks = self._choose(layer, q[None, None], starts, step, cache.inputs)[0]
        return cache.blocks.expand(step.store.layout.num_kv_heads, -1)

    def _stages_to_keep(self, steps: int) -> int:
        """How many stages need not run again, `steps` tokens after all of them ran."""
        config = self.config
        intervals = (
            config.first_refresh_steps,
            config.second_refresh_steps,
            config.third_refresh_steps,
        )
        return next((n for n, interval in enumerate(intervals) if steps % interval == 0), 3)
