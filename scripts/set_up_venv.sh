#!/bin/sh
# Makes .venv in the current directory, or refreshes it, from pyproject.toml and constraints.txt.
set -eu

if [ "$(uname)" = Darwin ] && command -v brew >/dev/null 2>&1; then
    # Homebrew's headers and libraries lie outside the compiler's own paths.
    prefix=$(brew --prefix)
    export CPATH="$prefix/include" LIBRARY_PATH="$prefix/lib"
fi
python=$(sh scripts/prerequisites.sh)

if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo 'setting up .venv: downloads and compiles for 1 to 10 minutes the first time' >&2
    "$python" -m venv --clear .venv
else
    echo 'refreshing .venv' >&2
fi
if ! .venv/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]' >&2; then
    echo 'setting up .venv failed: read the lines above, check the network, then run the same command again' >&2
    exit 1
fi
# trio-typing, which libp2p asks for, brings stubs of an old trio; mypy would take them for trio's own types.
rm -rf .venv/lib/python3*/site-packages/trio-stubs
