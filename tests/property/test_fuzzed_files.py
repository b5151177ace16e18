"""Files that others' parsers read, damaged or made up at random: what is in them, or an error, no crash.

`.weights.h5` and `.keras` are parsed by HDF5's C library, parquet by Arrow's C++ one, which may crash or
hang on the bytes of a bad file where no test can catch it. So fuzzed_files.py tries the mutants in a
process of its own, which says in which mutant that was; there the memory is limited as well. NumPy's
.npz would not need it, and gets the same.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOAK, SOAK_FACTOR

PROGRAM = Path(__file__).with_name("fuzzed_files.py")
# Of each kind; in a soak as many as fit into 10 minutes, other ones each time.
MUTANTS = {".weights.h5": 40, ".keras": 30, ".npz": 200, ".parquet": 200}
SECONDS = 6 * SOAK_FACTOR if SOAK else 0


@pytest.mark.soak
@pytest.mark.timeout(len(MUTANTS) * SECONDS + 600)
def test_mutants_are_read_as_they_are_or_refused():
    first = random.SystemRandom().randrange(10**9) if SOAK else 0
    kinds = [f"{kind}={count}" for kind, count in MUTANTS.items()]
    done = subprocess.run(
        [sys.executable, PROGRAM, str(first), str(SECONDS), *kinds],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-5000:]
    # Neither do all load nor are all refused, or the mutants would show little.
    tried = list(map(json.loads, done.stdout.splitlines()))
    assert [outcomes["kind"] for outcomes in tried] == list(MUTANTS)
    for outcomes in tried:
        least = MUTANTS[outcomes["kind"]] // 10
        assert outcomes["loaded"] > least and outcomes["refused"] > least, outcomes
