"""What an option is: a name, a kind, a default, a line of help."""

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Args:
        name: its name in Python and TOML; flag and variable are derived from it.
        kind: str, int, float, bool, Path or list (of str).
        default: the value when nobody says otherwise; None means "not set".
        help: one line for `--help`.
        flags: the spelling on the command line when it isn't just `--name`.
        choices: the allowed values, for a kind str.
        minimum: the smallest allowed number.
        metavar: the placeholder in `--help`.
        in_file: False for what makes no sense as a key of a configuration file.
    """

    name: str
    kind: type
    default: Any
    help: str
    flags: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    metavar: str | None = None
    in_file: bool = True

    @property
    def variable(self) -> str:
        return f"HIP_{self.name.upper()}"


def default_of(config: type, name: str) -> Any:
    """The default of a config's field: it exists once, in the config."""
    for field in dataclasses.fields(config):
        if field.name == name:
            return field.default
    raise LookupError(f"{config.__name__} has no field {name}")


def changed(group: tuple[Option, ...], name: str, **changes: Any) -> Option:
    """An option of a group that means a little more or less to another command."""
    (option,) = (option for option in group if option.name == name)
    return dataclasses.replace(option, **changes)
