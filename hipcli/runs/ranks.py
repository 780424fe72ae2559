"""Several processes of one run: `--gpus N` here, or what torchrun has started over hosts.

Under torchrun every process has the same command line. Rank 0 alone reads sources and speaks to
the terminal; the others do what it says.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hipcli.config import options
from hipcli.config.settings import Settings
from hipcli.engine.errors import UsageError
from hipcli.engine.threads import prepare_threads, quiet_transport

if TYPE_CHECKING:
    from hipcli.engine.distributed.control import Address
    from hipcli.engine.distributed.starting import Crew


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a run.

    Args:
        size: how many.
        placement: of pages.
        stall_s: how long one may be silent.
        told: what each was told by whoever started it; None where rank 0 starts the others.
    """

    size: int
    placement: str
    stall_s: int
    told: dict[str, str] | None = None

    @classmethod
    def of(cls, settings: Settings) -> "Ranks | None":
        """As settings and environment say; None for one process.

        Raises:
            UsageError: they contradict each other.
        """
        values, told = settings.values, options.told_rank()
        size, stall_s = values.get("gpus", 1), values.get("rank_timeout", 30)
        placement = values.get("placement", "interleaved")
        if told is None or told["world_size"] == "1":
            return cls(size, placement, stall_s) if size > 1 else None
        world = _checked(told)
        if settings.sources.get("gpus") == "command line" and size != world:
            raise UsageError(
                f"--gpus {size} contradicts the {world} processes that were started",
                "leave out --gpus: torchrun says how many there are",
            )
        return cls(world, placement, stall_s, told)

    @property
    def rank(self) -> int:
        """Of this process."""
        return 0 if self.told is None else int(self.told["rank"])

    def address(self) -> "Address | None":
        """Where processes meet that someone else has started."""
        from hipcli.engine.distributed.control import Address

        if self.told is None:
            return None
        told = self.told
        agent = told["torchelastic_use_agent_store"].lower() in ("true", "1")
        port, local_rank = int(told["master_port"]), int(told["local_rank"])
        host, rank, size = told["master_addr"], self.rank, self.size
        return Address(host, port, rank, size, local_rank, self.stall_s, agent)

    def crew(self) -> "Crew":
        """The processes as the engine takes them."""
        from hipcli.engine.distributed.starting import Crew

        return Crew(self.size, self.address(), self.stall_s)


def _checked(told: dict[str, str]) -> int:
    """How many processes there are by what this one was told.

    Raises:
        UsageError: its numbers are none, or do not go together.
    """
    hint = "start hip with torchrun, or unset RANK and WORLD_SIZE for one process"
    numbers = ("rank", "world_size", "local_rank", "master_port")
    for name in numbers:
        if not told[name].isdecimal():
            raise UsageError(f"{name.upper()} is {told[name]!r}, which is no number", hint)
    rank, world, _, port = (int(told[name]) for name in numbers)
    if rank >= world:
        raise UsageError(f"RANK is {rank}, and WORLD_SIZE {world}: ranks count from 0", hint)
    if not 0 < port < 1 << 16:
        raise UsageError(f"MASTER_PORT is {port}, which is no port", hint)
    return world


def served(settings: Settings) -> bool:
    """True where this process is a rank other than 0: it has done what rank 0 said, to the end.

    Raises:
        HipError: another rank is gone, or this one cannot go on.
    """
    ranks = Ranks.of(settings)
    address = None if ranks is None or not ranks.rank else ranks.address()
    if address is None:
        return False
    environment = options.process_environment()
    prepare_threads(environment)
    quiet_transport(environment)
    from hipcli.engine.distributed.working import work

    work(settings.engine_config(), address)
    return True
