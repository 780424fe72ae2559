"""What a repository says about itself without a model: where it starts and how it is run."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from hipcli.prompts import Context

_ENTRY = (
    (re.compile(r"^if __name__ == ['\"]__main__['\"]", re.MULTILINE), "python {}"),
    (re.compile(r"^\s*(?:pub )?(?:async )?fn main\s*\(", re.MULTILINE), "the program of {}"),
    (re.compile(r"^func main\s*\(\)", re.MULTILINE), "go run {}"),
    (re.compile(r"^(?:int|void)\s+main\s*\(", re.MULTILINE), "the program of {}"),
    (re.compile(r"public static void main\s*\("), "the program of {}"),
    (re.compile(r"\A#!.*\b(?:ba|z|da)?sh\b"), "sh {}"),
)
_TARGET = re.compile(r"^([a-zA-Z0-9][\w.-]*)\s*:(?!=)", re.MULTILINE)
_SCRIPTS = re.compile(r"^\[project\.scripts\]\s*$(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
_SCRIPT = re.compile(r"^([\w.-]+)\s*=", re.MULTILINE)
_DOCKER = re.compile(r"^(?:CMD|ENTRYPOINT)\s+(.+)$", re.MULTILINE)
_MAX_FOUND = 40


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A way to start something: the command or program, and the document that says so."""

    command: str
    path: str


def entry_points(context: Context) -> list[EntryPoint]:
    """Entry points in the documents, in order; none where nothing is code or a build file."""
    found: dict[EntryPoint, None] = {}
    for index, document in enumerate(context.documents):
        spans = [span for span in context.spans if span.document == index]
        if not spans or document.kind in ("pdf", "notebook", "markdown"):
            continue
        text = context.decode(context.ids[spans[0].start_token : spans[-1].end_token].tolist())
        for command in _commands(PurePath(document.name), text):
            found[EntryPoint(command, document.name)] = None
    return list(found)[:_MAX_FOUND]


def _commands(path: PurePath, text: str) -> Iterator[str]:
    if path.name in ("Makefile", "makefile", "GNUmakefile"):
        yield from (f"make {target}" for target in _TARGET.findall(text))
    elif path.name == "pyproject.toml":
        scripts = _SCRIPTS.search(text)
        yield from _SCRIPT.findall(scripts[1]) if scripts else ()
    elif path.name == "package.json":
        yield from _of_package(text)
    elif path.name == "__main__.py" and path.parent.name:
        folder = path.parent.parent
        where = "" if folder == PurePath() else f", in {folder}"
        yield f"python -m {path.parent.name}{where}"
    elif path.name.startswith("Dockerfile"):
        yield from (f"in the container: {command}" for command in _DOCKER.findall(text))
    else:
        for pattern, words in _ENTRY:
            if pattern.search(text):
                yield words.format(path)


def _of_package(text: str) -> Iterator[str]:
    try:
        content = json.loads(text)
        scripts = content.get("scripts", {})
        yield from (f"npm run {name}" for name in scripts)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return
