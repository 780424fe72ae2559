"""Instances that serve a trace, alone or as a pool, in slices of time.

Requests are served first come, first served: all wait at the front door, and whichever instance
has the least to do takes the next one. An instance admits a request when it has room for its
prompt and its answer. The managers are those of a real pool; only the engines are made of tables.
"""

from collections import deque
from dataclasses import dataclass

from hipcli.engine.pool.errands import Send
from hipcli.engine.pool.gmanager import GManager
from hipcli.engine.pool.messages import CENTRE, Envelope, PoolRules
from hipcli.engine.pool.performance import PerformanceModel
from hipcli.engine.pool.rmanager import RManager
from hipcli.engine.pool.scheduler import Scheduler, SchedulerConfig
from hipcli.engine.pool.simulation.hardware import Machine, ModelShape
from hipcli.engine.pool.simulation.instance import Instance, Running, Share
from hipcli.engine.pool.simulation.traces import Job

_SLICE_S = 0.25
# Requests that stand at one instance's door; all others wait at that of the cluster.
_QUEUE = 2
# The same where requests are handed out in turns, whoever has room.
_TURN_QUEUE = 16
# So many requests pass one at the front door that is longer than an instance.
_MOST_PASSES = 64


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What serves.

    Args:
        machine, shape: the GPUs and the model.
        instance_gpus: of each instance, in tensor parallel; the machine is full of them.
        pooled: instances lend and borrow.
        most_batch: requests that an instance generates at once.
        prefill: reading prompts takes time too; False times generation alone.
        shared_queue: whichever instance has the least to do takes the next request; False hands
            them out in turns.
        block_tokens: of a block; larger than a page, to be quick.
    """

    machine: Machine
    shape: ModelShape
    instance_gpus: int = 1
    pooled: bool = True
    most_batch: int = 256
    prefill: bool = False
    shared_queue: bool = True
    block_tokens: int = 256


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a trace.

    Args:
        tokens_per_s: generated while requests stood at the front door: all that serves is busy.
        served, refused: requests; one is refused that no instance, or no pool, could ever hold.
        longest_tokens: of those served.
        moved_blocks: lent with pages in them.
        room_blocks: lent before anything was computed.
    """

    tokens_per_s: float
    served: int
    refused: int
    longest_tokens: int
    moved_blocks: int
    room_blocks: int


class Cluster:
    """Serves a trace.

    Args:
        config: what with.
        rules: of the pool.
    """

    def __init__(self, config: ClusterConfig, rules: PoolRules | None = None) -> None:
        machine, gpus = config.machine, config.instance_gpus
        self._config = config
        self._model: PerformanceModel = machine.model(config.shape, gpus)
        self._capacity = machine.room_tokens(config.shape, gpus) // config.block_tokens
        rules = rules or PoolRules()
        self._instances: dict[str, Instance] = {}
        for number in range(machine.gpus // gpus):
            name = f"i{number:02}"
            node = str(number * gpus // machine.node_gpus)
            self._instances[name] = Instance(RManager(name, 1, self._capacity, rules), node)
        nodes = {name: one.node for name, one in self._instances.items()}
        policy = SchedulerConfig(block_tokens=config.block_tokens, nodes=nodes)
        self._centre = GManager(1, rules, Scheduler(policy, self._model))
        self._now_s = 0.0
        self._moved = self._room = self._turn = self._passes = 0
        self._generated = 0.0

    @property
    def room_tokens(self) -> int:
        """The longest request that can be served."""
        blocks = self._capacity
        if self._config.pooled:
            blocks += int(0.9 * self._capacity) * (len(self._instances) - 1)
        return blocks * self._config.block_tokens

    def serve(self, jobs: list[Job]) -> Outcome:
        """Serves all of `jobs`, which wait from the beginning."""
        possible = [
            job for job in jobs if job.prompt_tokens + job.answer_tokens <= self.room_tokens
        ]
        waiting = deque(possible)
        round_s = 0.0
        while waiting:
            self._open_doors(waiting)
            for one in self._instances.values():
                self._admit(one)
            if self._config.pooled:
                self._talk(schedule=self._now_s >= round_s)
                round_s = round_s if self._now_s < round_s else self._now_s + 1.0
            self._generate()
            self._now_s += _SLICE_S
        return Outcome(
            tokens_per_s=self._generated / self._now_s if self._now_s else 0.0,
            served=len(possible),
            refused=len(jobs) - len(possible),
            longest_tokens=max((job.prompt_tokens for job in possible), default=0),
            moved_blocks=self._moved,
            room_blocks=self._room,
        )

    def _blocks(self, job: Job) -> int:
        return -(-(job.prompt_tokens + job.answer_tokens) // self._config.block_tokens)

    def _open_doors(self, waiting: deque[Job]) -> None:
        """The next requests go to instances with the shortest way to room.

        One that is longer than an instance goes to one that lends nothing. While there is none, or
        none on whose host no such request waits for its room, it lets some others pass.
        """
        passed: deque[Job] = deque()
        while waiting and self._passes < _MOST_PASSES:
            job = waiting.popleft()
            if self._blocks(job) > self._capacity:
                if passed or not self._begin_long(job):
                    passed.append(job)
                else:
                    self._passes = 0
                continue
            one = self._next_door()
            if one is None:
                waiting.appendleft(job)
                break
            one.wait(job, self._blocks(job))
            self._passes += bool(passed)
        self._passes *= bool(passed)
        waiting.extendleft(reversed(passed))

    def _next_door(self) -> Instance | None:
        """Who takes the next request; None while there is no room at any door, or at that one."""
        instances = list(self._instances.values())
        if not self._config.shared_queue:
            one = instances[self._turn % len(instances)]
            self._turn += len(one.queue) < _TURN_QUEUE
            return one if len(one.queue) < _TURN_QUEUE else None
        doors = [one for one in instances if len(one.queue) < _QUEUE]
        return min(doors, key=Instance.committed, default=None)

    def _begin_long(self, job: Job) -> bool:
        placing = {
            one.node
            for one in self._instances.values()
            for request, running in one.running.items()
            if not running.read and not one.manager.is_placed(request)
        }
        owners = [
            one
            for one in self._instances.values()
            if not one.manager.is_creditor and one.node not in placing
        ]
        if not owners:
            return False
        one = min(owners, key=lambda one: (one.manager.is_debtor, one.committed()))
        blocks, name = self._blocks(job), f"r{job.number}"
        if not one.manager.admit(name, blocks, partly=True):
            return False
        one.running[name] = Running(job, blocks)
        return True

    def _admit(self, one: Instance) -> None:
        manager = one.manager
        while one.queue and len(one.running) < self._config.most_batch:
            job = one.queue[0]
            blocks, name = self._blocks(job), f"r{job.number}"
            if not manager.may_admit(blocks, self._now_s) or not manager.admit(name, blocks):
                break
            one.queue.popleft()
            one.running[name] = Running(job, blocks)
        first = list(one.queue)[:_QUEUE]
        manager.waiting_blocks = tuple(self._blocks(job) for job in first)

    def _talk(self, schedule: bool) -> None:
        """All messages of a slice arrive in it; pages that move take both ends their time."""
        post: deque[Envelope] = deque()
        for one in self._instances.values():
            post.extend(one.manager.tick(self._now_s))
        post.extend(self._centre.tick(self._now_s))
        self._carry(post)
        if schedule:
            post.extend(self._centre.schedule())
            self._carry(post)

    def _carry(self, post: deque[Envelope]) -> None:
        while post:
            envelope = post.popleft()
            if envelope.to == CENTRE:
                post.extend(self._centre.handle(envelope, self._now_s))
                continue
            one = self._instances[envelope.to]
            post.extend(one.manager.handle(envelope, self._now_s))
            for job in one.manager.take_jobs():
                if not isinstance(job, Send):
                    tokens = len(job.slots) * self._config.block_tokens
                    took_s = self._config.machine.move_s(self._config.shape, tokens)
                    one.busy_s += took_s
                    self._instances[job.source].busy_s += took_s
                    self._moved += len(job.slots)
                    post.extend(one.manager.arrived(job.move, self._now_s))

    def _generate(self) -> None:
        """One slice of everybody's work."""
        shares = {name: self._share(one) for name, one in self._instances.items()}
        guests = dict.fromkeys(self._instances, 0.0)
        for share in shares.values():
            for creditor, tokens in share.away.items():
                guests[creditor] += tokens
        for name, one in self._instances.items():
            left_s = max(0.0, _SLICE_S - one.busy_s)
            one.busy_s = max(0.0, one.busy_s - _SLICE_S)
            share = shares[name]
            if share.ready and left_s:
                away = list(share.away.values())
                step_s = self._model.step_s(
                    len(share.ready), share.here, guests[name], away, share.far
                )
                self._advance(one, share.ready, left_s / step_s)

    def _share(self, one: Instance) -> Share:
        """What of an instance's requests is attended where."""
        share = Share()
        for request, running in one.running.items():
            if not running.read:
                if not one.manager.is_placed(request):
                    continue
                self._read(one, request, running)
            share.ready[request] = running
            lent = 0.0
            for creditor, blocks in one.manager.borrowed(request).items():
                tokens = running.tokens * blocks / running.blocks
                share.away[creditor] = share.away.get(creditor, 0.0) + tokens
                share.far += self._instances[creditor].node != one.node
                lent += tokens
            share.here += running.tokens - lent
        return share

    def _read(self, one: Instance, request: str, running: Running) -> None:
        """The prompt is read, by the owner and its creditors side by side."""
        running.read = True
        borrowed = one.manager.borrowed(request)
        self._room += sum(borrowed.values())
        if self._config.prefill:
            helpers = [one, *(self._instances[name] for name in borrowed)]
            gpus = self._config.instance_gpus * len(helpers)
            took_s = self._config.machine.prefill_s(
                self._config.shape, gpus, running.job.prompt_tokens
            )
            for helper in helpers:
                helper.busy_s += took_s

    def _advance(self, one: Instance, ready: dict[str, Running], steps: float) -> None:
        for request, running in ready.items():
            done = min(steps, running.job.answer_tokens - running.generated)
            running.generated += done
            self._generated += done
            if running.generated >= running.job.answer_tokens:
                del one.running[request]
                self._carry(deque(one.manager.release(request)))
