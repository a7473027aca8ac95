#!/bin/sh
# Looks for what .venv needs: Python >= 3.11 with venv and headers, a C compiler, libgmp with headers (fastecdsa, a
# dependency of libp2p, is compiled on installation).
#
#   prerequisites.sh           prints the python to use, or one line with the command that installs what is missing
#   prerequisites.sh --list    prints the packages that are missing, for this system's package manager
#
# PYTHON=... names the interpreter to use instead of the first fitting one.
set -u

system=other
command -v brew >/dev/null 2>&1 && system=brew
command -v dnf >/dev/null 2>&1 && system=dnf
command -v apt-get >/dev/null 2>&1 && system=apt

missing=''
packages=''

# need WHAT APT_PACKAGES DNF_PACKAGES BREW_PACKAGES
need() {
    missing="${missing:+$missing, }$1"
    case $system in
        apt) packages="$packages $2" ;;
        dnf) packages="$packages $3" ;;
        brew) packages="$packages $4" ;;
        other) packages="$packages $1" ;;
    esac
}

is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

python=''
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if is_recent "$candidate"; then
        python=$candidate
        break
    fi
done

# compiles [FLAG...] reads a C program from its input.
compiles() {
    object=$(mktemp) && cc -x c - -o "$object" "$@" >/dev/null 2>&1
    status=$?
    rm -f "$object"
    return $status
}

if [ -z "$python" ] && [ -n "${PYTHON:-}" ]; then
    echo "PYTHON=$PYTHON is no Python 3.11 or newer; name one that is, or leave PYTHON out" >&2
    exit 1
fi
if [ -z "$python" ] && command -v python3 >/dev/null 2>&1; then
    need 'Python >= 3.11' 'python3.11 python3.11-venv python3.11-dev' 'python3.11 python3.11-devel' 'python@3.13'
elif [ -z "$python" ]; then
    need 'Python >= 3.11' 'python3 python3-venv python3-dev' 'python3 python3-devel' 'python@3.13'
else
    name=${python##*/}
    case $name in python3.*) ;; *) name=python3 ;; esac
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        need "Python's venv module" "$name-venv" "$name" 'python@3.13'
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -f "$headers/Python.h" ] || need "Python's headers" "$name-dev" "$name-devel" 'python@3.13'
fi
if ! command -v cc >/dev/null 2>&1 || ! echo 'int main(void) { return 0; }' | compiles; then
    need 'a C compiler' 'gcc libc6-dev' 'gcc' 'gcc'
    # Without a compiler the headers cannot be tried; the package manager skips what is there already.
    need "libgmp's headers" 'libgmp-dev' 'gmp-devel' 'gmp'
elif ! printf '#include <gmp.h>\nint main(void) { mpz_t n; mpz_init(n); return 0; }\n' | compiles -lgmp; then
    need "libgmp's headers" 'libgmp-dev' 'gmp-devel' 'gmp'
fi
packages=${packages# }

if [ "${1:-}" = --list ]; then
    [ -z "$packages" ] || echo "$packages"
    exit 0
fi
if [ -n "$missing" ]; then
    sudo='sudo '
    [ "$(id -u)" -ne 0 ] || sudo=''
    case $system in
        apt) fix="${sudo}apt-get update && ${sudo}apt-get install -y $packages" ;;
        dnf) fix="${sudo}dnf install -y $packages" ;;
        brew) fix="brew install $packages" ;;
        other) fix="your system's package manager" ;;
    esac
    echo "missing: $missing. Install with: $fix" >&2
    exit 1
fi
echo "$python"
