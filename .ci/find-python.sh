#!/usr/bin/env bash
# Prints the first Python that starts and has one of the wanted versions, or fails.
#
#   .ci/find-python.sh 3.13          .ci/find-python.sh 3.11 3.12 3.13
#
# A name on PATH is not enough: a pyenv shim is there for versions that are not selected.
set -euo pipefail

is() { [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$2" ]; }

for candidate in python3 python; do
  for version in "$@"; do
    if is "$candidate" "$version"; then echo "$candidate" && exit 0; fi
  done
done
for version in "$@"; do
  for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version"*/bin/python; do
    if is "$candidate" "$version"; then echo "$candidate" && exit 0; fi
  done
done
exit 1
