"""The options of saved sessions."""

from hipcli.config.option import Option

SESSION = (
    Option(
        "cache_max_size",
        str,
        None,
        "What saved sessions may take together, as in 20GiB (default: the smaller of 50GiB and a "
        "quarter of the free disk).",
        metavar="SIZE",
    ),
    Option("name", str, "", "Name the saved session.", metavar="NAME"),
    Option(
        "keep",
        str,
        "auto",
        "What a session keeps once it is read: full, a ratio such as 0.25 of the pages between "
        "sinks and window, or auto: full as long as that fits --cache-max-size.",
        metavar="RATIO",
    ),
    Option("no_cache", bool, False, "Neither use nor save a session."),
    Option("refresh", bool, False, "Read everything anew even if a saved session matches."),
    Option(
        "verify_weights",
        bool,
        False,
        "Tell the model by every byte of its weights, not by samples; sessions read with it are "
        "kept apart.",
    ),
    Option(
        "stale_ok",
        bool,
        False,
        "Resume a session as it is although its files have changed; the answer is marked.",
    ),
    Option("cached_only", bool, False, "Stop (exit 5) when no saved session matches."),
)
