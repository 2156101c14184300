"""Plant every fault into every source, and count those the proof catches: `make mutation`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from jax_pmap.model import RefusalError
from mutation.equivalent import why_equal_by_hand, why_equivalent
from mutation.faults import FAULTS, Mutant, mutants
from mutation.hand import Written, planted, verified, written
from mutation.sources import Source, sources, verdict, warm_worker

Found = list[tuple[Mutant, str, str]]


def run(source: Source | Written, only: str, witness: str) -> tuple[str, Found]:
    """Every mutant of a source, with its verdict and, of a survivor, why it is equivalent."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        if isinstance(source, Written):
            return f"{source.name}-by-hand", run_written(source, only, folder)
        return source.name, run_emitted(source, only, folder, witness)


def run_written(source: Written, only: str, folder: Path) -> Found:
    """Every mutant of a function written by hand, as `verify` judges it."""
    found = []
    with verified(source, folder) as warm:
        warm.prove(warm.code)
        for mutant in planted(source):
            if only and mutant.fault != only:
                continue
            says = verdict(warm, mutant.code)
            why = why_equal_by_hand(source, mutant, warm.layout) if says == "survived" else ""
            if says != "not applicable":
                found.append((mutant, says, why))
    return found


def run_emitted(source: Source, only: str, folder: Path, witness: str) -> Found:
    """Every mutant of emitted code, as the proof of `gen` judges it; none where one witness is not enough."""
    found = []
    with warm_worker(source, folder, witness) as warm:
        try:
            warm.prove(warm.code)
        except RefusalError:
            if witness == "both":
                raise
            return []
        for mutant in mutants(warm.code):
            if only and mutant.fault != only:
                continue
            says = verdict(warm, mutant.code)
            why = why_equivalent(source, mutant, warm.observed.plan) if says == "survived" else ""
            if says != "not applicable":
                found.append((mutant, says, why))
    return found


def main() -> int:
    """Print caught / planted, and every survivor; exit 1 where one is not shown equivalent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="sources; all of them by default")
    parser.add_argument("--fault", default="", help="only this fault")
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument(
        "--witness",
        choices=("both", "derivation", "run"),
        default="both",
        help="what judges emitted code: derivation and run together, or one of them alone",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print every verdict")
    asked = parser.parse_args()
    known = {s.name: s for s in sources()}
    if asked.witness == "both":  # `verify` asks both.
        known |= {f"{w.name}-by-hand": w for w in written()}
    chosen = [known[name] for name in asked.names or known]
    start, counts, survivors = time.monotonic(), Counter[str](), 0
    with ProcessPoolExecutor(asked.jobs) as pool:
        for name, found in pool.map(run, chosen, [asked.fault] * len(chosen), [asked.witness] * len(chosen)):
            alive = [(m, why) for m, says, why in found if says.startswith("survived")]
            unshown = [m for m, why in alive if not why]
            counts["planted"] += len(found)
            counts["equivalent"] += len(alive) - len(unshown)
            survivors += len(unshown)
            print(f"{name}: {len(found) - len(alive)} of {len(found)} caught", flush=True)
            for mutant, says, why in found:
                if says.startswith("survived") or asked.verbose:
                    mark = f"equivalent: {why}" if why else says
                    print(f"  {mutant.fault} {mutant.number}  `{mutant.line}`  {mark}", flush=True)
    caught = counts["planted"] - counts["equivalent"] - survivors
    print(
        f"{caught} caught of {counts['planted']} planted ({len(FAULTS)} faults, {len(chosen)} sources); "
        f"{counts['equivalent']} shown equivalent, {survivors} survived; {time.monotonic() - start:.0f} s"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
