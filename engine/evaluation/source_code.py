"""Generated source code: functions, classes and tables in the manner of Python, without end."""

import re
from collections.abc import Iterator
from random import Random

from hipcli.engine.evaluation.draws import draw, integer
from hipcli.engine.evaluation.words import ADJECTIVES, THINGS, VERBS

# {verb} {thing} {other} {adjective} are words, {n} and {m} numbers, {field} an attribute.
_TEMPLATES = (
    '''def {verb}_{thing}(values, limit={n}):
    """{Verb} every {adjective} {thing} and return what is left."""
    kept = []
    for value in values:
        if value.{field} > limit:
            continue
        kept.append(value.{field} + {m})
    return kept
''',
    '''def {verb}_{adjective}_{thing}({thing}, {other}=None):
    """{Verb} one {thing}; the {other} is optional."""
    if {other} is None:
        {other} = default_{other}({n})
    total = {thing}.{field} * {m}
    return total - {other}.{field}
''',
    '''class {Adjective}{Thing}:
    """A {thing} that is {adjective} until its {other} changes."""

    def __init__(self, {other}, size={n}):
        self.{other} = {other}
        self.size = size
        self.{field} = 0

    def {verb}(self, amount):
        self.{field} += min(amount, self.size)
        return self.{field} >= {m}
''',
    """{THING}_LIMITS = {{
    "{adjective}": {n},
    "{field}": {m},
    "{other}": {k},
}}
""",
    """def test_{verb}_{thing}_is_{adjective}():
    {thing} = make_{thing}(size={n})
    assert {verb}({thing}).{field} == {m}
    assert not {thing}.{other}
""",
    '''def {verb}_all({thing}s, *, {adjective}=False):
    """{Verb} the {thing}s in order of their {field}.

    Args:
        {thing}s: what to {verb}.
        {adjective}: leave out those whose {other} is above {n}.
    """
    chosen = sorted({thing}s, key=lambda {thing}: {thing}.{field})
    if {adjective}:
        chosen = [{thing} for {thing} in chosen if {thing}.{other} <= {n}]
    return chosen[:{m}]
''',
    '''def {thing}_to_{other}({thing}):
    """The {other} that belongs to a {thing}, or an error that names both."""
    try:
        return {THING}S[{thing}.{field}]
    except KeyError:
        raise LookupError(f"no {other} for {{{thing}.{field}}} within {n}") from None
''',
    '''@dataclass(frozen=True)
class {Thing}Options:
    """How to {verb} a {thing}."""

    {field}: int = {n}
    {other}_ratio: float = 0.{m}
    {adjective}: bool = True
''',
    """def main(arguments):
    {thing} = open_{thing}(arguments.{field})
    while {thing}.{adjective}:
        {other} = {thing}.next_{other}()
        if {other} is None or {other}.{field} == {n}:
            break
        {verb}_{other}({other}, retries={m})
    {thing}.close()
""",
    """def _{verb}_{field}(self, {other}):
    # The {other} may be {adjective}: {n} rounds are enough in practice.
    for attempt in range({n}):
        {thing} = self.{field}({other}, attempt)
        if {thing} is not None:
            return {thing}
    return self.{adjective}_{thing}
""",
)
_SLOT = re.compile(r"\{\{|\}\}|\{(\w+)\}")


def tell_code(rng: Random) -> Iterator[str]:
    """Definitions, each followed by two empty lines, a line of modules now and then."""
    count = 0
    while True:
        if count % 12 == 0:
            yield _filled('"""{Verb} and {adjective} {thing}s."""\n\nimport {other}\n\n\n', rng)
        count += 1
        yield _filled(draw(rng, _TEMPLATES), rng) + "\n\n"


def _filled(template: str, rng: Random) -> str:
    words = {
        "verb": draw(rng, VERBS),
        "thing": draw(rng, THINGS),
        "other": draw(rng, THINGS),
        "field": draw(rng, THINGS),
        "adjective": draw(rng, ADJECTIVES),
        "n": str(integer(rng, 2, 100)),
        "m": str(integer(rng, 1, 100)),
        "k": str(integer(rng, 1, 1000)),
    }
    words |= {"Verb": words["verb"].capitalize(), "Thing": words["thing"].capitalize()}
    words |= {"THING": words["thing"].upper(), "Adjective": words["adjective"].capitalize()}
    return _SLOT.sub(lambda m: words[m[1]] if m[1] else m[0][0], template)
