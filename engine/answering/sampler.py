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
        self._seed = seed
        self._generator = torch.Generator().manual_seed(seed)
        self._device_generator: torch.Generator | None = None

    def pick(self, logits: torch.Tensor) -> int:
        """Token id from fp32 logits [vocab_size]."""
        if self.temperature == 0:
            return int(logits.argmax())
        probabilities = torch.softmax(logits.cpu() / self.temperature, dim=-1)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        """Token id from fp32 logits [vocab_size]: int64 [1] on their device, not waited for.

        The random numbers are the device's own: another device draws other tokens.
        """
        if self.temperature == 0:
            return logits.argmax(-1, keepdim=True)
        if self._device_generator is None:
            self._device_generator = torch.Generator(logits.device).manual_seed(self._seed)
        probabilities = torch.softmax(logits / self.temperature, dim=-1)
        # The smallest of exponential waiting times falls to each token with its probability.
        waiting = torch.empty_like(probabilities).exponential_(generator=self._device_generator)
        return (probabilities / waiting).argmax(-1, keepdim=True)
