"""How a question names what the text says: in its words, reworded, or without a word of it."""

from random import Random

from hipcli.engine.evaluation.case import Draft, Needle, Probe
from hipcli.engine.evaluation.draws import draw
from hipcli.engine.evaluation.words import NAMES

OWN = "What is the secret number of the {key}?"

# The key word stays, everything else is said differently.
REWORDED = (
    "Which hidden figure belongs to the {key}?",
    "Tell me the digits that go with the {key}.",
    "The {key} has a confidential code. How does it read?",
)

# A sentence and a question that share no word but the most common ones; the first dozen by
# synonyms, the rest by what everybody knows.
UNSHARED = (
    ("{name} mends shoes in a shop by the roundabout.", "Who repairs footwear?"),
    ("{name} purchased an electric automobile.", "Who bought a car that runs on batteries?"),
    ("{name} is terrified of flying.", "Who is too frightened to board an aeroplane?"),
    ("{name} instructs toddlers in arithmetic.", "Who teaches mathematics?"),
    ("{name} won the lottery in August.", "Who became a millionaire through a raffle?"),
    ("{name} works as a physician in a clinic.", "Who is a doctor?"),
    ("{name} adores spicy cuisine.", "Who loves hot curry?"),
    ("{name} resigned from the ministry.", "Which politician quit the government?"),
    ("{name} assembles computers as a hobby.", "Who builds PCs for fun?"),
    ("{name} suffers from insomnia.", "Who is unable to sleep?"),
    ("{name} emigrated to Australia.", "Who moved overseas, to Sydney?"),
    ("{name} photographs reptiles.", "Who takes pictures of lizards?"),
    ("{name} has an apartment beside the Eiffel Tower.", "Who lives in Paris?"),
    ("{name} cannot digest milk.", "Who suffers from lactose intolerance?"),
    ("{name} plays the saxophone in a jazz quartet.", "Who is a musician?"),
    ("{name} saw the pyramids and the Sphinx.", "Who travelled to Egypt?"),
    ("{name} trains daily for the marathon.", "Who is a long-distance runner?"),
    ("{name} has not eaten meat since childhood.", "Who is a vegetarian?"),
    ("{name} discovered a comet with a telescope.", "Who is an astronomer?"),
    ("{name} has climbed Mount Everest.", "Which alpinist visited Nepal?"),
    ("{name} defends suspects before the jury.", "Who is an attorney?"),
    ("{name} fills cavities and straightens teeth.", "Who is a dentist?"),
    ("{name} feeds penguins at the aquarium.", "Which zoo keeper looks after Antarctic birds?"),
    ("{name} scored the decisive penalty.", "Which footballer shot the winning goal?"),
)


def secret_sentence(key: str, number: str) -> str:
    """The sentence that gives the secret number of `key` away."""
    return f"The secret number of the {key} is {number}."


def unshared(rng: Random, depth: float) -> Draft:
    """A fact about somebody, asked for without a word that stands in it."""
    sentence, question = draw(rng, UNSHARED)
    name = draw(rng, NAMES)
    probe = Probe(question, (name,), (0,))
    return Draft((Needle(sentence.format(name=name), depth),), (probe,))
