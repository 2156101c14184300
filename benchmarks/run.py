"""Print the speed of jax-pmap as ratios to something everybody can run, measured in one run.

    python benchmarks/run.py              # three repetitions, medians
    python benchmarks/run.py --repeat 7
    python benchmarks/run.py --only proof

Every time is that of a whole process. The two sides of a ratio take turns, so that a busy moment of the
machine hits both; CPU time is counted as well, which such a moment changes less.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import checks
import growth
import overhead
import sources
from timing import ratio_of_medians

PYTHON = sys.executable
GENERATE = (PYTHON, "-m", "jax_pmap", "gen")


def with_proof(folder, repeat):
    """`gen` with the full proof against a script that runs the original once and one pmap version once."""
    (folder / "step.py").write_text(sources.TRAIN_STEP)
    (folder / "by_hand.py").write_text(sources.BY_HAND)
    return ratio_of_medians(
        "gen with proof, train step",
        (*GENERATE, "step.py::train_step", "--inputs", "step.py::inputs"),
        "jit once and pmap once, by hand",
        (PYTHON, "by_hand.py"),
        2.5,
        folder,
        repeat,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of each time (default 3)")
    rows = ("proof", "statements", "leaves", "modules", "check", "generated", "overhead")
    parser.add_argument("--only", choices=rows, help="one row alone")
    options = parser.parse_args()
    held = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.only in (None, "proof"):
            held.append(with_proof(folder, options.repeat))
        if options.only in (None, "statements"):
            held.append(growth.statements(folder, GENERATE))
        if options.only in (None, "leaves"):
            held.append(growth.leaves(folder, GENERATE))
        if options.only in (None, "modules"):
            held.append(growth.modules(folder, GENERATE))
        if options.only in (None, "check"):
            held.append(checks.unrelated(folder, options.repeat))
        if options.only in (None, "generated"):
            held.append(checks.proved_again(folder, GENERATE))
        if options.only in (None, "overhead"):
            held.append(overhead.of_drop_ins(folder, GENERATE))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
