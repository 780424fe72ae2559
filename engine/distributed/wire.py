"""Bytes that DistAttention sends, as sums: what a count of them is compared with.

Per token, layer and other rank a query goes out, num_heads * head_dim values, and comes back as a
partial result of as many values and a log-sum-exp a head in fp32. (A result that is not normalised
has two numbers a head.) Tokens that all ranks run alike send no query: every rank has it.
"""

from dataclasses import dataclass

LSE_BYTES = 4


@dataclass(frozen=True, slots=True)
class WireShape:
    """What decides how much is sent.

    Args:
        num_layers, num_heads, head_dim: of the model.
        value_bytes: of a number in its dtype.
        ranks: how many.
    """

    num_layers: int
    num_heads: int
    head_dim: int
    value_bytes: int
    ranks: int

    @property
    def query_bytes(self) -> int:
        """Of one token in one layer to one rank."""
        return self.num_heads * self.head_dim * self.value_bytes

    @property
    def partial_bytes(self) -> int:
        """Of one token in one layer from one rank."""
        return self.query_bytes + self.num_heads * LSE_BYTES

    @property
    def reading_bytes(self) -> int:
        """Sent by all ranks for a token of a document; its last layer attends nothing."""
        there_and_back = self.query_bytes + self.partial_bytes
        return (self.num_layers - 1) * (self.ranks - 1) * there_and_back

    @property
    def answering_bytes(self) -> int:
        """Sent by all ranks for a token of a question or an answer."""
        return self.num_layers * self.ranks * (self.ranks - 1) * self.partial_bytes
