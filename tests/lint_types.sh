#!/bin/sh
# Import rules and types of the three houses, under the names they have when installed.
# Usage: lint_types.sh BIN    BIN: folder with lint-imports and mypy
set -e
bin=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
view=$(mktemp -d)
trap 'rm -rf "$view"' EXIT
cp -r "$root/hipcli" "$view/hipcli"
cp -r "$root/engine" "$root/kernels" "$view/hipcli/"
cp "$root/pyproject.toml" "$view/"
cd "$view"
PYTHONPATH="$view" "$bin/lint-imports" --no-cache -q 2>/dev/null || PYTHONPATH="$view" "$bin/lint-imports" --no-cache
"$bin/mypy" --no-error-summary hipcli
