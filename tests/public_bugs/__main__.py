"""Ask `verify`, `check` and `gen` about every pair and print the score: `make bugs`."""

from __future__ import annotations

import argparse
import time

from public_bugs import Found, Pair, judged, record, score


def main() -> int:
    """Exit 1 where a wrong function is proved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="pairs; all of them by default")
    parser.add_argument("--record", action="store_true", help="write results.json and the table of the page")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print what `verify` says of the wrong ones"
    )
    asked = parser.parse_args()
    start = time.monotonic()

    def say(pair: Pair, found: Found) -> None:
        mark = "ok  " if found.verified else "MISS"
        check = ", ".join(found.check_wrong) or "nothing"
        alarm = f" and {', '.join(found.check_right)} in the right one" if found.check_right else ""
        print(
            f"{mark} {pair.name}: right {found.right}, wrong {found.wrong}; check {check}{alarm}; "
            f"gen {found.gen} ({time.monotonic() - start:.0f} s)",
            flush=True,
        )
        if asked.verbose:
            print(f"     {found.says}", flush=True)

    found = judged(asked.names, say)
    print(score(found))
    if asked.record:
        record(found)
    return int(any(each.wrong == "proved" for each in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
