#!/usr/bin/env bash
# Brings a virtual environment up to date and returns at once when it already is.
#
#   .ci/venv.sh .venv python3 "test bench"
#
# The stamp in DIR holds everything the environment depends on: the interpreter, this checkout's
# folder, the extras and the content of pyproject.toml. When any of them changed (a pull, a moved
# checkout, another Python) or the interpreter no longer starts, it is made or installed again.
set -euo pipefail

dir=$1 python=$2 extras=${3// /,}

say() { printf '%s\n' "$*" >&2; }

if ! version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null); then
  say "compilecut: '$python' does not start. Name a Python 3.11, 3.12 or 3.13: make PYTHON=..."
  exit 1
fi
case $version in
  3.11.* | 3.12.* | 3.13.*) ;;
  *)
    say "compilecut: '$python' is Python $version, but 3.11, 3.12 or 3.13 is needed." \
      "Name another: make PYTHON=python3.12 ..."
    exit 1
    ;;
esac

made_by="$version $("$python" -c 'import sys; print(sys.base_prefix)') $PWD"
stamp="$dir/.installed-${extras//,/-}"
wanted="$made_by $(cksum <pyproject.toml)"

works() { "$dir/bin/python" -c 'import pip' 2>/dev/null; }

if [ -e "$dir" ] && { [ "$(cat "$dir/.made-by" 2>/dev/null)" != "$made_by" ] || ! works; }; then
  say "compilecut: $dir is broken or was made by another Python or checkout; making it again"
  rm -rf "$dir"
fi

if [ ! -e "$dir" ]; then
  say "compilecut: making $dir with Python $version"
  if ! "$python" -m venv "$dir"; then
    rm -rf "$dir"
    say "compilecut: '$python -m venv' failed; on Debian or Ubuntu: apt-get install python3-venv"
    exit 1
  fi
  printf '%s' "$made_by" >"$dir/.made-by"
fi

if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  say "compilecut: installing compilecut[$extras] into $dir"
  "$dir/bin/python" -m pip install -qq --disable-pip-version-check \
    --editable ".[$extras]"
  printf '%s' "$wanted" >"$stamp"
fi
