"""The next token from logits: greedy, or sampled at a temperature with a seed of its own."""

import torch


class Sampler:
    """Picks tokens.

    Args:
        temperature: 0 is greedy.
        seed: of the random numbers, when sampling.
    """

    def __init__(self, temperature: float, seed: int) -> None:
        self.temperature = temperature
        self._generator = torch.Generator().manual_seed(seed)

    def pick(self, logits: torch.Tensor) -> int:
        """Token id from fp32 logits [vocab_size]."""
        if self.temperature == 0:
            return int(logits.argmax())
        probabilities = torch.softmax(logits.cpu() / self.temperature, dim=-1)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))
