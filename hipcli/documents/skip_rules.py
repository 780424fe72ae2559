"""Files of a folder that are left out unless named: secrets, lock files, minified, vendored."""

import fnmatch
import re
from pathlib import PurePosixPath

from hipcli.documents.refusal import Refusal

_LOCK_FILES = re.compile(
    r"package\-lock\.json|npm\-shrinkwrap\.json|yarn\.lock|pnpm\-lock\.yaml|bun\.lock"
    r"|bun\.lockb|deno\.lock|poetry\.lock|uv\.lock|pdm\.lock|pixi\.lock|pipfile\.lock"
    r"|conda\-lock\.yml|cargo\.lock|composer\.lock|gemfile\.lock|go\.sum|go\.work\.sum"
    r"|flake\.lock|mix\.lock|rebar\.lock|pubspec\.lock|podfile\.lock|packages\.lock\.json"
    r"|project\.assets\.json|gradle\.lockfile|\.terraform\.lock\.hcl|package\.resolved"
    r"|cartfile\.resolved|module\.bazel\.lock|stack\.yaml\.lock|cabal\.project\.freeze"
)
_VENDORED = re.compile(
    r"node_modules|bower_components|jspm_packages|vendor|third_party|third-party|3rdparty"
    r"|thirdparty|site-packages|__pypackages__|venv|virtualenv|Pods|Carthage"
)
_SECRET_NAMES = (
    ".env",
    ".env.*",
    "*.env",
    ".envrc",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".htpasswd",
    ".pypirc",
    ".npmrc",
    ".git-credentials",
    ".dockercfg",
    ".vault-token",
    ".terraformrc",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "*.pem",
    "*.key",
    "*.ppk",
    "*.p8",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "*.tfstate",
    "*.tfstate.backup",
    "credentials",
    "credentials.json",
    "client_secret*.json",
    "service-account*.json",
    "service_account*.json",
    "secrets.y*ml",
    "secrets.json",
    "secrets.toml",
)
_NO_SECRET_NAMES = ("*.pub", "*.example", "*.sample", "*.template", "*.dist", "*.defaults")
_PRIVATE_KEY = re.compile(
    rb"^(?:-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d)",
    re.MULTILINE,
)
_MINIFIED_NAME = re.compile(r"[.-]min\.(?:js|mjs|cjs|css|html|svg)$|\.(?:js|mjs|cjs|css)\.map$")
_MINIFIABLE = {".js", ".mjs", ".cjs", ".css"}


def check_path(relative: str) -> None:
    """Refuse a file of a folder by its path.

    Args:
        relative: path from the folder, parts joined by "/".

    Raises:
        Refusal: it looks like a secret, is a lock file or minified.
    """
    name = PurePosixPath(relative).name.lower()
    if is_secret_name(name):
        raise _secret("its name")
    if _LOCK_FILES.fullmatch(name):
        raise Refusal("lock_file", "a lock file, written by a program", _NAME_IT, "skipped")
    if _MINIFIED_NAME.search(name):
        raise Refusal("minified", "minified, or a source map", _NAME_IT, "skipped")


def check_content(relative: str, data: bytes) -> None:
    """Refuse a file of a folder by what is in it.

    Raises:
        Refusal: it starts with a private key, or is minified.
    """
    head = data[:4096]
    match = _PRIVATE_KEY.search(head)
    # A key in the middle of a program or manual is an example; a key file opens with it, or with
    # a few lines of attributes.
    if match and head[: match.start()].count(b"\n") <= 8:
        raise _secret("a private key in it")
    suffix = PurePosixPath(relative).suffix.lower()
    if suffix in _MINIFIABLE and len(data) > 2048 and len(data) > 300 * (data.count(b"\n") + 1):
        raise Refusal("minified", "minified (few, very long lines)", _NAME_IT, "skipped")


def check_folder(name: str) -> Refusal | None:
    """Why nothing is read of a folder of that name, None if it is looked into."""
    if name == ".git":
        return Refusal("git", "git's own data", "", "skipped", "folder")
    if name == "__pycache__":
        return Refusal("cache", "compiled files", "", "skipped", "folder")
    if _VENDORED.fullmatch(name):
        hint = "Name the folder itself to read it."
        return Refusal("vendored", "holds code of others", hint, "skipped", "folder")
    return None


def is_secret_name(name: str) -> bool:
    """Whether a file of that name, without folders, usually holds passwords or keys."""
    name = name.lower()
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in _NO_SECRET_NAMES):
        return False
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _SECRET_NAMES)


_NAME_IT = "Name the file itself to read it."


def _secret(because: str) -> Refusal:
    return Refusal("secret", f"looks like a secret ({because})", _NAME_IT, "skipped")
