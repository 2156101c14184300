"""Time whole processes and print what came out."""

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

GENERATOR = Path(__file__).resolve().parents[1] / "generator"


class Seconds(NamedTuple):
    """What one run of a process took."""

    clock: float
    #: Of all its threads and children; a busy machine makes it longer, but not by much.
    cpu: float


def environment():
    """Variables for a process that is measured."""
    path = os.pathsep.join(filter(None, [str(GENERATOR), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, "PYTHONPATH": path}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have byte code
    return variables


def timed(command, folder):
    """`Seconds` that `command` takes in `folder`.

    Raises:
        SystemExit: the command failed, so its time means nothing.
    """
    before, start = _cpu(), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    seconds = Seconds(time.perf_counter() - start, _cpu() - before)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} exited with {done.returncode}\n{done.stderr}")
    return seconds


def _cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ratio_of_medians(ours_name, ours, theirs_name, theirs, bound, folder, repeat):
    """Print the medians of both and their ratios; return whether these are within `bound`."""
    times = [(timed(theirs, folder), timed(ours, folder)) for _ in range(repeat)]
    print(f"{ours_name}  /  {theirs_name}")
    held = True
    for kind in Seconds._fields:
        reference, measured = (
            statistics.median(getattr(seconds, kind) for seconds in column)
            for column in zip(*times, strict=True)
        )
        ratio = measured / reference
        held &= ratio <= bound
        verdict = "ok" if ratio <= bound else "TOO SLOW"
        print(
            f"  {kind:5} {measured:7.2f} s / {reference:6.2f} s   ratio {ratio:5.2f}   "
            f"at most {bound}   {verdict}",
            flush=True,
        )
    return held
