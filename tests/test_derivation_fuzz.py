"""What is derived equal runs equal: of random programs, and of programs that were made to look equal.

Both run in a process of their own, for the devices that they simulate. `make fuzz` runs ten thousand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: How many random programs, and from which seed on.
COUNT, SEED = 150, 100_000
DEEP = "JAX_PMAP_FUZZ" in os.environ


def ran(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / script), *arguments], capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def traps() -> list[dict[str, object]]:
    done = ran("derivation_traps.py", *(["--all"] if DEEP else []))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_nothing_wrong_is_derived_of_random_programs() -> None:
    done = ran("derivation_fuzz.py", "--count", str(COUNT), "--seed", str(SEED), "--share", "0.02")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "derived, runs equal" in done.stdout


def test_nothing_wrong_is_derived_of_programs_made_to_look_equal(traps: list[dict[str, object]]) -> None:
    assert [trap["name"] for trap in traps if trap["derived"] and not (trap["equal"] and trap["same"])] == []


def test_what_is_said_of_the_programs_is_true(traps: list[dict[str, object]]) -> None:
    assert [trap["name"] for trap in traps if trap["same"] not in (None, trap["equal"])] == []


def test_most_of_what_is_equal_is_derived(traps: list[dict[str, object]]) -> None:
    equal = [trap for trap in traps if trap["equal"]]
    assert sum(bool(trap["derived"]) for trap in equal) > len(equal) // 2
