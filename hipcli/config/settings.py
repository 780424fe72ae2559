"""Flags, environment and configuration files become one `Settings`; `Settings` makes the configs.

Precedence: flag, environment variable, the file named by `--config`, the user's file, default.
Typer does the choosing: files enter as its "default map", below flags and variables.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from hipcli.config import options
from hipcli.config.option import Option
from hipcli.config.parameters import FROM_FILES, VALUES, takes
from hipcli.config.words import parse_keep, parse_size, read_password
from hipcli.engine.config import CacheConfig, EngineConfig, GenerationConfig
from hipcli.engine.errors import UsageError
from hipcli.engine.nearest import nearest
from hipcli.terminal.console import Console

if TYPE_CHECKING:
    from hipcli.documents import ReadOptions
    from hipcli.documents.spool import Spool

_METHOD_SETTINGS = tuple(option.name for option in options.METHOD if option.name != "method")
# What makes no sense together: a session that is not used, renewed, required or named.
_EXCLUSIVE = {
    "no_cache": ("refresh", "cached_only", "name"),
    "refresh": ("cached_only", "stale_ok"),
}
Config = TypeVar("Config")


@dataclass(frozen=True, slots=True)
class Settings:
    """The parsed options of one command, by name, and where each came from."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]

    @classmethod
    def of(cls, context: typer.Context) -> "Settings":
        """Settings of the running command. Tells its console how to talk, and `-v` what won: of
        settings that somebody set, of all with `-vv`.
        """
        values = dict(context.meta[VALUES])
        known = {option.name: option for option in options.ALL if option.name in values}
        sources = {name: _source(context, option) for name, option in known.items()}
        settings = cls(values, sources)
        console: Console = context.obj
        settings._configure(console)
        for name, source in sources.items():
            if source != "default" or console.verbose > 1:
                console.detail(f"{name} = {_shown(values[name])} ({source})")
        return settings

    @classmethod
    def from_keywords(cls, console: Console, keywords: Mapping[str, Any]) -> "Settings":
        """Settings of a program: keywords in place of flags, else as for a command.

        Raises:
            UsageError: an unknown keyword, or a value that cannot be.
        """
        known = {option.name: option for option in options.ALL}
        words: list[str] = []
        for name, value in keywords.items():
            if name not in known:
                close = nearest(name, known)
                hint = f"did you mean {close!r}?" if close else "options are those of hip ask"
                raise UsageError(f"unknown option {name!r}", hint)
            words += _as_words(known[name], value)
        return _settings_of_words(console, words)

    def _configure(self, console: Console) -> None:
        console.quiet = bool(self.values.get("quiet"))
        console.verbose = 0 if console.quiet else self.values.get("verbose", 0)
        console.debug = bool(self.values.get("debug"))
        console.no_color = bool(self.values.get("no_color"))
        console.failure_format = self.output_format

    def unless_given(self, kept: Mapping[str, Any]) -> "Settings":
        """These settings with those of `kept`, save for what the command line itself says."""
        known = {
            name: value
            for name, value in kept.items()
            if name in self.values and self.sources.get(name) != "command line"
        }
        return dataclasses.replace(self, values={**self.values, **known})

    @property
    def output_format(self) -> str:
        """text, json or jsonl."""
        if self.values.get("json") and self.values.get("jsonl"):
            raise UsageError("--json and --jsonl exclude one another", "give one of them")
        return (
            "json" if self.values.get("json") else "jsonl" if self.values.get("jsonl") else "text"
        )

    @property
    def cache_root(self) -> Path:
        return self.values.get("cache_dir") or options.default_cache_dir()

    @property
    def models_dir(self) -> Path:
        return self.values.get("models_dir") or self.cache_root / "models"

    @property
    def shows_progress(self) -> bool:
        mode = self.values.get("progress", "auto")
        return mode == "on" or (mode == "auto" and not self.values.get("quiet"))

    def method_settings(self) -> dict[str, int]:
        """Settings of the method that were given, by name."""
        return {
            name: self.values[name]
            for name in _METHOD_SETTINGS
            if self.values.get(name) is not None
        }

    def engine_config(self, **changes: Any) -> EngineConfig:
        """The engine's config; `changes` are fields that do not come from options."""
        made: dict[str, Any] = {
            "models_dir": self.models_dir,
            "method_settings": self.method_settings(),
            "threads": self.values.get("threads") or 0,
            "gpu_memory_bytes": self._size("gpu_memory"),
            "host_memory_bytes": self._size("host_memory"),
        }
        return self._made(EngineConfig, **made | changes)

    def generation_config(self) -> GenerationConfig:
        return self._made(GenerationConfig)

    def cache_config(self) -> CacheConfig:
        for one, others in _EXCLUSIVE.items():
            for other in others:
                if self.values[one] and self.values[other]:
                    both = f"{options.flag(one)} and {options.flag(other)}"
                    raise UsageError(f"{both} exclude one another", "give one of them")
        directory = None if self.values["no_cache"] else self.cache_root
        limit = self.values["cache_max_size"]
        max_bytes = 0 if limit is None else max(1, self._size("cache_max_size"))
        keep = parse_keep(self.values["keep"])
        return self._made(CacheConfig, directory=directory, max_bytes=max_bytes, keep=keep)

    def read_options(self, stdin: "Spool | None") -> "ReadOptions":
        from hipcli.documents import ReadOptions

        converted: dict[str, Any] = {}
        if self.values["max_file_size"] is not None:
            converted["max_file_bytes"] = self._size("max_file_size")
        if self.values["max_total_size"] is not None:
            converted["max_total_bytes"] = self._size("max_total_size")
        if self.values["max_files"] is None:
            # The default exists once, in ReadOptions.
            converted["max_files"] = ReadOptions().max_files
        return self._made(
            ReadOptions,
            include=tuple(self.values["include"] or ()),
            exclude=tuple(self.values["exclude"] or ()),
            password=read_password(self.values["password_file"]),
            stdin=stdin,
            **converted,
        )

    def _size(self, name: str) -> int:
        """Bytes of the option called `name`, 0 when it is not given.

        Raises:
            UsageError: it is no size, or an allowance of nothing.
        """
        text = self.values.get(name)
        if text is None:
            return 0
        num_bytes = parse_size(text, options.flag(name))
        if num_bytes == 0 and name in ("gpu_memory", "host_memory"):
            raise UsageError(f"{options.flag(name)} {text} leaves no room", "write it as 24GiB")
        return num_bytes

    def _made(self, config: type[Config], **converted: Any) -> Config:
        """A config from the values whose names are its fields, and from those given here.

        Raises:
            UsageError: the config refuses a value.
        """
        names = {field.name for field in dataclasses.fields(config)}  # type: ignore[arg-type]
        same = {name: value for name, value in self.values.items() if name in names}
        try:
            return config(**same | converted)
        except ValueError as error:
            text = str(error)
            name, _, rest = text.partition(" ")
            if name in names:
                text = f"{options.flag(name)} {rest}"
            raise UsageError(text) from error


def _as_words(option: Option, value: Any) -> list[str]:
    """A value as it would stand on a command line."""
    names = (option.flags or (f"--{option.name.replace('_', '-')}",))[0].split("/")
    if option.kind is bool:
        return names[:1] if value else names[1:]
    if value is None:
        return []
    values = value if option.kind is list else [value]
    return [f"{names[0]}={entry}" for entry in values]


def _settings_of_words(console: Console, words: list[str]) -> Settings:
    """The settings of a command that takes all options and does nothing."""
    found: list[Settings] = []

    @takes(*options.SECTIONS.values())
    def nothing(context: typer.Context) -> int:
        found.append(Settings.of(context))
        return 0

    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(nothing)
    parse_error: Any = typer.BadParameter.__base__
    try:
        with typer.main.get_command(app).make_context("hip", words, obj=console) as context:
            context.command.invoke(context)
    except parse_error as error:
        raise UsageError(error.format_message()) from error
    return found[0]


def _source(context: typer.Context, option: Option) -> str:
    """Where the value of `option` came from, in words a user can act on."""
    source = context.get_parameter_source(option.name)
    name = source.name if source is not None else "DEFAULT"
    if name == "COMMANDLINE":
        return "command line"
    if name == "ENVIRONMENT":
        return option.variable
    if name == "DEFAULT_MAP":
        return str(context.meta[FROM_FILES][option.name].path)
    return "default"


def _shown(value: Any) -> str:
    return "not set" if value in (None, (), "") else str(value)


def origin(context: typer.Context, name: str) -> str:
    """Where the refused value of `name` came from; empty when it was the command line itself."""
    for option in options.ALL:
        if option.name == name:
            source = _source(context, option)
            return "" if source in ("command line", "default") else source
    return ""
