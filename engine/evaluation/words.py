"""Words and names that tasks are made of."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Keys of needles: common, concrete, each a word of its own.
KEYS = _words(
    """
    harbor lantern violin orchard compass saddle anchor basket blanket bottle bridge bucket
    button candle carpet castle cellar chimney clock cottage cradle curtain desert drum engine
    feather fence forest fountain garden gate glacier hammer helmet island jacket kettle kite
    ladder library lighthouse market meadow mirror monastery needle oven palace pencil piano
    pillow pocket prison pyramid quarry railway ribbon river rocket sailor school shovel
    statue station stable table temple theater tower trumpet tunnel umbrella valley
    village vineyard volcano wagon waterfall whistle window windmill workshop zipper balcony
    barrel bakery beacon cathedral chapel dolphin eagle falcon guitar hospital
    """
)

# First names that generated prose does not use.
NAMES = _words(
    """
    Zadie Sanjay Ottilie Bjorn Yusuf Priya Kenji Anouk Desmond Ximena Thaddeus Ingrid Omar
    Svetlana Rashid Mirela Fatima Wanjiru Leopold Noor Casimir Fenna Idris Paloma
    """
)

PLACES = ("kitchen", "garden", "office", "hallway", "bathroom", "bedroom", "garage", "attic")
# Things that no haystack mentions: of one among many apples nobody could say where it is.
OBJECTS = ("trombone", "microscope", "skateboard", "calculator", "hairdryer")

VERBS = _words(
    """
    load parse merge count check build split write fetch trim sort join scan update filter
    group clean store render resolve collect measure convert compare assign reset
    """
)
THINGS = _words(
    """
    order record invoice buffer token header packet index account price region sensor batch
    frame queue ticket report layer signal column window schema vector cursor margin
    """
)
ADJECTIVES = _words(
    """
    open valid stale first last active hidden remote local pending empty total known
    recent broken shared unique partial ordered final
    """
)

_ONSETS = _words("b br d dr f g gl h j k kl l m n p pl r s st t tr v w z")
_VOWELS = _words("a e i o u ai ou")
_CODAS = _words("l m n r s t nd rk")
NUM_CODED = (len(_ONSETS) * len(_VOWELS)) ** 2 * len(_CODAS)


def coded_word(number: int) -> str:
    """A word that no language has, two syllables: another one for each number of [0, NUM_CODED)."""
    word = ""
    for part in (_ONSETS, _VOWELS, _ONSETS, _VOWELS, _CODAS):
        number, which = divmod(number, len(part))
        word += part[which]
    return word
