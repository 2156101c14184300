"""Run every test, see which lines it runs, and write the list of those that `make test` leaves out.

make overlap                     # 25 minutes on two cores, with Python 3.12 or newer
python -m overlap --recorded     # choose anew from the lines of the last time
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

from overlap.choose import choose

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = REPOSITORY / "build" / "overlap"
LIST = REPOSITORY / "tests" / "thorough.txt"
#: Seconds of both cores together; lint and the start of the workers come on top.
BUDGET = 860.0
#: Tests as short as this one are always run, in seconds: they cost a few minutes together.
SHORT = 0.3
#: Always run, whatever lines they share: what must not be proved is caught, the demo and the wheel work.
ALWAYS = (
    "tests/test_mutation.py::",
    "tests/test_public_bugs.py::",
    "tests/test_derivation_fuzz.py::",
    "tests/test_fuzz.py::",
    "tests/test_examples.py::test_the_demo",
    "tests/test_wheel.py::",
    "tests/test_proved.py::",
    "tests/test_verify.py::test_a_pmap_body_pasted_into_shard_map_is_not_equal",
    "tests/test_verify.py::test_faults_that_no_single_decision_shows",
    "tests/test_verify.py::test_state_that_is_not_synchronised_is_named",
    "tests/test_verify.py::test_the_mean_of_masked_means_is_named",
    "tests/test_verify_meshes.py::test_a_step_that_is_wrong_on_its_mesh_is_refused",
    "tests/test_model_axis.py::test_faults_are_found",
    "tests/test_randomness.py::test_a_fold_too_few_or_too_many_is_caught_by_the_proof",
    "tests/test_randomness.py::test_devices_that_count_upward",
)
HEAD = """\
# Tests that `make thorough` runs and `make test` leaves out. Others run the lines that they run, so they
# are chosen by what they cost; `make overlap` measures anew and writes this list.
"""


def record() -> None:
    """Run all tests, and keep which lines and how long each one took."""
    if sys.version_info < (3, 12):
        sys.exit("`sys.monitoring` is needed: use Python 3.12 or newer (make PYTHON=python3.12 overlap)")
    shutil.rmtree(RECORDED, ignore_errors=True)
    RECORDED.mkdir(parents=True)
    recording = str(Path(__file__).with_name("recording"))
    pytest = [sys.executable, "-m", "pytest", "-n", "2", "-p", "names_of_tests"]
    subprocess.run(
        [*pytest, f"--junitxml={RECORDED / 'times.xml'}"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": recording, "JAX_PMAP_OVERLAP": str(RECORDED)},
        check=True,
    )


def recorded_lines() -> dict[str, set[int]]:
    """The lines that each test ran, by numbers that stand for them."""
    numbers: dict[str, int] = {}
    found: defaultdict[str, set[int]] = defaultdict(set)
    for path in sorted(RECORDED.glob("lines-*")):
        test = ""
        for line in path.read_text().splitlines():
            if line.startswith("test "):
                test = line.removeprefix("test ")
            elif test:
                found[test].add(numbers.setdefault(line, len(numbers)))
    return found


def recorded_seconds() -> dict[str, float]:
    """How long each test took, its fixtures included."""
    found: defaultdict[str, float] = defaultdict(float)
    for case in ElementTree.parse(RECORDED / "times.xml").iter("testcase"):
        test = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        found[test] += max(float(case.get("time", 0)), 0.001)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m overlap", description="Choose what `make test` leaves out."
    )
    parser.add_argument("--recorded", action="store_true", help="take the lines that were recorded last time")
    if not parser.parse_args().recorded:
        record()
    lines, seconds = recorded_lines(), recorded_seconds()
    lines = {test: reached for test, reached in lines.items() if test in seconds}
    always = [test for test in lines if seconds[test] < SHORT or test.startswith(ALWAYS)]
    chosen = set(choose(lines, seconds, BUDGET, always))
    left_out = sorted(lines.keys() - chosen)
    LIST.write_text(HEAD + "".join(f"{test}\n" for test in left_out))
    every = set().union(*lines.values())
    kept = set().union(*(lines[test] for test in chosen))
    print(
        f"{len(chosen)} of {len(lines)} tests reach {len(kept)} of {len(every)} lines, in"
        f" {sum(seconds[test] for test in chosen):.0f} of {sum(seconds[test] for test in lines):.0f} seconds;"
        f" {len(left_out)} are left to `make thorough`: {LIST.relative_to(REPOSITORY)}"
    )


if __name__ == "__main__":
    main()
