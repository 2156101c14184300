"""Time whole processes and print what came out."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

GENERATOR = Path(__file__).resolve().parents[1] / "generator"


def timed(command, folder):
    """Seconds on the clock that `command` takes in `folder`.

    Raises:
        SystemExit: the command failed, so its time means nothing.
    """
    path = os.pathsep.join(filter(None, [str(GENERATOR), os.environ.get("PYTHONPATH")]))
    start = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} exited with {done.returncode}\n{done.stderr}")
    return seconds


def ratio_of_medians(ours_name, ours, theirs_name, theirs, bound, folder, repeat):
    """Print both medians and their ratio; return whether it is within `bound`."""
    times = [(timed(theirs, folder), timed(ours, folder)) for _ in range(repeat)]
    reference, measured = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = measured / reference
    verdict = "ok" if ratio <= bound else "TOO SLOW"
    print(f"{ours_name:34} {measured:7.2f} s")
    print(
        f"{theirs_name:34} {reference:7.2f} s   ratio {ratio:5.2f}   at most {bound}   {verdict}", flush=True
    )
    return ratio <= bound
