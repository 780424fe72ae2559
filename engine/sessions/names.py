"""Names that users give to sessions."""

MAX_NAME_CHARACTERS = 100
# A name is never a path, but people paste names into commands, and look at them in lists.
_SEPARATORS = "/\\"


def check_name(name: str) -> None:
    """Refuse what is no good as a name; empty stands for no name.

    Raises:
        ValueError: too long, with blanks at its ends, control or unprintable characters or path
            separators in it, or beginning with a dash or a dot.
    """
    if not name:
        return
    what = ""
    if len(name) > MAX_NAME_CHARACTERS:
        what = f"has {len(name):,} characters; at most {MAX_NAME_CHARACTERS} are allowed"
    elif name != name.strip():
        what = "begins or ends with a blank"
    elif not name.isprintable():
        what = "has characters that cannot be shown"
    elif any(character in name for character in _SEPARATORS):
        what = "has a / or a \\ in it; a name is no path"
    elif name[0] in "-.":
        what = f"begins with {name[0]!r}, like an option or a hidden file"
    if what:
        raise ValueError(f"the session name {name[:MAX_NAME_CHARACTERS]!r} {what}")
