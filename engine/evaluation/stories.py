"""Tasks about people and things that move: one, two or three facts must be put together.

After the idea of bAbI (arXiv 1502.05698) and BABILong (arXiv 2406.10149), simulated anew.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from hipcli.engine.evaluation.case import Draft, Needle, Probe
from hipcli.engine.evaluation.draws import draw, some
from hipcli.engine.evaluation.words import NAMES, OBJECTS, PLACES

_EVENTS = 10
_PEOPLE = 3


@dataclass(slots=True)
class Story:
    """What happened so far.

    Attributes:
        sentences: one for each event.
        moves: per person, the places they went to and the numbers of the events.
        holders: per thing that is carried, by whom, and the number of the event.
    """

    sentences: list[str] = field(default_factory=list)
    moves: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    holders: dict[str, tuple[str, int]] = field(default_factory=dict)

    def go(self, person: str, place: str) -> None:
        """A person goes to a place."""
        self.moves.setdefault(person, []).append((place, len(self.sentences)))
        self.sentences.append(f"{person} went to the {place}.")

    def take(self, person: str, thing: str) -> None:
        """A person picks a thing up and keeps it."""
        self.holders[thing] = (person, len(self.sentences))
        self.sentences.append(f"{person} picked up the {thing}.")


def tell(rng: Random) -> Story:
    """Some people go about; now and then one picks up a thing."""
    story = Story()
    people, things = some(rng, NAMES, _PEOPLE), some(rng, OBJECTS, 2)
    while len(story.sentences) < _EVENTS:
        person = draw(rng, people)
        been = story.moves.get(person, [])
        if been and things and rng.random() < 0.35:
            story.take(person, things.pop())
        else:
            here = been[-1][0] if been else ""
            story.go(person, draw(rng, [place for place in PLACES if place != here]))
    return story


def one_fact(rng: Random, depth: float) -> Draft:
    """Where is a person? Their last move tells."""

    def ask(story: Story) -> Probe | None:
        person = draw(rng, sorted(story.moves))
        place, event = story.moves[person][-1]
        return _probe(f"Where is {person} now?", place, (event,))

    return _draft(rng, ask)


def two_facts(rng: Random, depth: float) -> Draft:
    """Where is a thing? Who carries it, and where did they go last?"""

    def ask(story: Story) -> Probe | None:
        for thing, (person, taken) in sorted(story.holders.items()):
            place, event = story.moves[person][-1]
            if event > taken:
                return _probe(f"Where is the {thing} now?", place, (taken, event))
        return None

    return _draft(rng, ask)


def three_facts(rng: Random, depth: float) -> Draft:
    """Where was a thing before it came to a place? Its carrier's last two moves tell."""

    def ask(story: Story) -> Probe | None:
        for thing, (person, taken) in sorted(story.holders.items()):
            *_, (before, first), (place, second) = [("", -1), *story.moves[person]]
            visits = [name for name, _ in story.moves[person]].count(place)
            if first > taken and visits == 1:
                question = f"Where was the {thing} before it came to the {place}?"
                return _probe(question, before, (taken, first, second), seen=(place,))
        return None

    return _draft(rng, ask)


def _probe(question: str, place: str, events: tuple[int, ...], seen: tuple[str, ...] = ()) -> Probe:
    """A probe whose right answer names no other place; the question's own may be repeated."""
    rivals = tuple(other for other in PLACES if other not in (place, *seen))
    return Probe(question, (place,), events, rivals=rivals, max_new_tokens=16)


def _draft(rng: Random, ask: Callable[[Story], Probe | None]) -> Draft:
    probe = None
    while probe is None:
        story = tell(rng)
        probe = ask(story)
    depths = sorted(rng.random() for _ in story.sentences)
    return Draft(tuple(map(Needle, story.sentences, depths)), (probe,))
