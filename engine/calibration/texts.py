"""Texts to calibrate with: what they hide and ask is like the tasks of `hip eval`, never the same.

One text hides many facts, so that one reading serves many questions. Some of the questions are
about look-alikes, in the text's words and reworded; the others share no word with the text.
"""

from dataclasses import dataclass
from random import Random

from hipcli.engine.evaluation import wordings
from hipcli.engine.evaluation.case import Draft, Needle, Probe
from hipcli.engine.evaluation.draws import digits, draw, shuffled, some
from hipcli.engine.evaluation.words import KEYS, NAMES

ALIKE = 8
# Every so-manieth fact is only for measuring what the others taught.
HELD_OUT_EVERY = 4

# The key word stays, everything else is said differently; not the evaluation's own wordings.
REWORDED = (
    "What figures does one need for the {key}?",
    "By which concealed value is the {key} known?",
    "How does the classified entry of the {key} run?",
)

# As `wordings.UNSHARED`, and none of those: evaluations must not ask what was practised.
UNSHARED = (
    ("{name} conducts the village choir.", "Who leads a group of singers?"),
    ("{name} sells roses and tulips at the corner.", "Who is a florist?"),
    ("{name} fixes leaking pipes for a living.", "Who is a plumber?"),
    ("{name} collects stamps from every continent.", "Who is a philatelist?"),
    ("{name} gets a rash from peanuts.", "Who has a food allergy?"),
    ("{name} commands a submarine.", "Who is a naval officer?"),
    ("{name} bakes loaves before sunrise.", "Who makes bread early in the morning?"),
    ("{name} was born in Tokyo.", "Who comes from Japan?"),
    ("{name} delivers letters on a bicycle.", "Who brings people their mail?"),
    ("{name} tends hives behind the barn.", "Who keeps bees?"),
    ("{name} has walked on the moon.", "Who was once an astronaut?"),
    ("{name} translates Tolstoy and Chekhov.", "Who knows Russian?"),
    ("{name} broke a leg while skiing.", "Who had an accident in the snow?"),
    ("{name} paints portraits in oil.", "Which artist makes pictures of faces?"),
    ("{name} arrests burglars.", "Who is a police officer?"),
    ("{name} composes sonnets at night.", "Who is a poet?"),
    ("{name} inherited a fortune.", "Who became rich when a relative died?"),
    ("{name} digs up bones of dinosaurs.", "Who searches for fossils?"),
    ("{name} rides thoroughbreds at Ascot.", "Who is a jockey?"),
    ("{name} cannot hear a thing.", "Who is deaf?"),
    ("{name} drives a lorry across the Alps.", "Who transports goods over mountains?"),
    ("{name} bathes in the icy sea.", "Who swims where the water is cold?"),
    ("{name} grows tomatoes in a greenhouse.", "Who raises vegetables under glass?"),
    ("{name} has left three husbands.", "Who got divorced again and again?"),
)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A text to be made, and which of its probes are kept out of the fit."""

    draft: Draft
    held_out: tuple[bool, ...]


def lesson(rng: Random) -> Lesson:
    """Facts all over a text, each asked for; those kept out are kept out with all wordings."""
    needles, probes, held_out = [], [], []
    for number, key in enumerate(some(rng, KEYS, ALIKE)):
        secret = digits(rng, 7)
        needles.append(wordings.secret_sentence(key, secret))
        for wording in (wordings.OWN, draw(rng, REWORDED)):
            probes.append(Probe(wording.format(key=key), (secret,), (number,)))
            held_out.append(number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)
    names = shuffled(rng, NAMES)
    for number, (sentence, question) in enumerate(UNSHARED):
        probes.append(Probe(question, (names[number],), (len(needles),)))
        needles.append(sentence.format(name=names[number]))
        # The same sentences in every text: what one text held out no other one taught.
        held_out.append(number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)
    places = shuffled(rng, range(len(needles)))
    hidden = (
        Needle(sentence, (place + rng.random()) / len(needles))
        for sentence, place in zip(needles, places, strict=True)
    )
    return Lesson(Draft(tuple(hidden), tuple(probes)), tuple(held_out))
