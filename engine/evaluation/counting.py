"""Tasks about a whole text: which words stand in it most often?"""

from random import Random

from hipcli.engine.evaluation.case import Draft, Probe
from hipcli.engine.evaluation.draws import shuffled, some
from hipcli.engine.evaluation.words import KEYS, NUM_CODED, coded_word

# Below so many words the common ones are repeated less, so that others have room.
_FEW_WORDS = 600
_COMMON = 10


def common_words(rng: Random, depth: float) -> Draft:
    """Ten words thirty times each among others three times each (6 and 1 in a short text)."""
    common = some(rng, KEYS, _COMMON)
    numbers = shuffled(rng, range(NUM_CODED))

    def units(count: int) -> list[str]:
        often, seldom = (30, 3) if count >= _FEW_WORDS else (6, 1)
        others = max(0, count - _COMMON * often) // seldom
        words = [word for word in common for _ in range(often)]
        for number in range(others):
            words += [coded_word(numbers[number % NUM_CODED])] * seldom
        return [f"{place}. {word}\n" for place, word in enumerate(shuffled(rng, words), start=1)]

    question = "Which ten words appear most often in the list?"
    return Draft((), (Probe(question, tuple(common), max_new_tokens=80),), units)


def frequent_words(rng: Random, depth: float) -> Draft:
    """Coded words whose frequencies fall with the square of their rank; the first one is dots."""
    numbers = shuffled(rng, range(NUM_CODED))

    def units(count: int) -> list[str]:
        vocabulary = max(8, count // 50)
        weights = [1 / rank**2 for rank in range(1, vocabulary + 1)]
        total = sum(weights)
        words: list[str] = []
        for rank, weight in enumerate(weights):
            word = coded_word(numbers[rank % NUM_CODED]) if rank else "..."
            words += [word] * max(1, round(count * weight / total))
        return [f"{word} " for word in shuffled(rng, words)]

    top = tuple(coded_word(number) for number in numbers[1:4])
    question = "Which three coded words appear most often in the text? The dots are no word."
    return Draft((), (Probe(question, top, max_new_tokens=40),), units)
