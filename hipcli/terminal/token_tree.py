"""`hip inspect --tree`: which folders and files the tokens go to."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hipcli.terminal import formatting

# Entries of one folder that are shown; the smaller ones are added up.
_MAX_SHOWN = 12


@dataclass(slots=True)
class Node:
    """A folder or file; `count` is of all files below it, in the unit of the inspection."""

    name: str
    count: int = 0
    files: int = 0
    children: "dict[str, Node]" = field(default_factory=dict)


def build(rows: Sequence[Mapping[str, Any]], unit: str) -> Node:
    """The tree of what was read.

    Args:
        rows: of `inputs[]`; those without a count are left out.
        unit: the column to add up: "tokens" or "words".
    """
    root = Node("total")
    for row in rows:
        if row.get(unit) is None:
            continue
        node = root
        _add(node, row[unit])
        for part in _parts(row["path"]):
            node = node.children.setdefault(part, Node(part))
            _add(node, row[unit])
    _fold(root)
    return root


def as_record(node: Node, unit: str) -> dict[str, Any]:
    """The tree as plain data, largest first; nothing is left out."""
    record: dict[str, Any] = {"name": node.name, unit: node.count, "files": node.files}
    if node.children:
        record["children"] = [as_record(child, unit) for child in _largest(node)]
    return record


def render(root: Node, unit: str) -> str:
    """The tree as lines: count, share of the total, name."""
    lines = [(root, root.name), *_lines(root, "")]
    width = max(len(unit), *(len(formatting.count(node.count)) for node, _ in lines))
    head = f"{unit.upper():>{width}}  SHARE  PATH\n"
    return head + "".join(
        f"{formatting.count(node.count):>{width}}  {node.count / max(1, root.count):>4.0%}   "
        f"{name}{_files(node)}\n"
        for node, name in lines
    )


def _parts(path: str) -> list[str]:
    """Folders with "/" at their end, then the file."""
    *folders, name = path.split("/")
    return [f"{folder}/" for folder in folders] + [name]


def _add(node: Node, count: int) -> None:
    node.count += count
    node.files += 1


def _fold(root: Node) -> None:
    """A folder with nothing but one folder in it becomes one entry with it."""
    pending = [root]
    while pending:
        node = pending.pop()
        for name, child in list(node.children.items()):
            while len(child.children) == 1 and child.name.endswith("/"):
                (only,) = child.children.values()
                if not only.children:
                    break
                child.name += only.name
                child.children = only.children
            node.children[name] = child
            pending.append(child)


def _largest(node: Node) -> list[Node]:
    return sorted(node.children.values(), key=lambda child: (-child.count, child.name))


def _lines(node: Node, indent: str) -> Iterator[tuple[Node, str]]:
    children = _largest(node)
    rest = children[_MAX_SHOWN:] if len(children) > _MAX_SHOWN + 1 else []
    shown = children[: len(children) - len(rest)]
    if rest:
        files = sum(child.files for child in rest)
        shown = [*shown, Node("(smaller ones)", sum(child.count for child in rest), files)]
    for child in shown:
        last = child is shown[-1]
        yield child, f"{indent}{'└── ' if last else '├── '}{formatting.one_line(child.name)}"
        yield from _lines(child, indent + ("    " if last else "│   "))


def _files(node: Node) -> str:
    plain = not node.children and node.files == 1
    return "" if plain else f"  ({formatting.plural(node.files, 'file')})"
