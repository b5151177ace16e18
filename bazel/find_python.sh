#!/usr/bin/env bash
# Prints the path of the Python that .venv is made of: $PYTHON, or the first on PATH for which $TENSORFLOW has wheels and which
# can make virtual environments. Fails, saying why, if there is none.
#   bazel/find_python.sh --newest    prints the newest minor version of Python 3 that $TENSORFLOW has wheels for
set -euo pipefail

newest=14  # of what is not known to have fewer; pip says it then
if [[ ${TENSORFLOW:-==2.21} =~ [=~]=\ *2\.([0-9]+) ]]; then
  minor=${BASH_REMATCH[1]}
  ((minor >= 20)) || newest=12
  ((minor < 20 || minor > 21)) || newest=13
fi
if [[ ${1:-} == --newest ]]; then
  echo "$newest"
  exit
fi
probe="
import sys
if not (3, 10) <= sys.version_info[:2] <= (3, $newest):
    sys.exit('Python %d.%d: ${TENSORFLOW:-TensorFlow} has wheels for 3.10 to 3.$newest' % sys.version_info[:2])
try:
    import ensurepip, venv
except ImportError:
    sys.exit('no ensurepip: Debian and Ubuntu have it in the package python%d.%d-venv' % sys.version_info[:2])
print(sys.executable)
"
tried=()
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
  command -v "$candidate" >/dev/null || continue
  if answer=$("$candidate" -c "$probe" 2>&1); then
    echo "$answer"
    exit
  fi
  tried+=("$candidate (${answer%%$'\n'*})")
done
echo "no Python that fits: $(IFS=';'; echo "${tried[*]:-none of ${PYTHON:-python3, python3.10 to python3.$newest} is on PATH}")" >&2
exit 1
