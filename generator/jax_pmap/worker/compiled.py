"""What XLA made of a function: what its devices really say to each other, and the memory they take."""

import collections
import contextlib
import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax

from .groups import along
from .protocol import Collective, Memory

COLLECTIVE = re.compile(
    r" = (?P<result>.*?) "
    r"(?P<kind>all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\((?P<rest>.*)"
)
#: The first line of a computation, and the others that an operation of it runs.
COMPUTATION = re.compile(r"^(?:ENTRY )?(%[\w.\-]+) \(.*\{$")
RUN = re.compile(
    r"(?:condition|body|to_apply|calls|branch_computations|called_computations)=\{?((?:%[\w.\-]+(?:, )?)+)"
)
#: How many rounds a loop has, where XLA knows.
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
ARRAY = re.compile(r"\b(?P<dtype>pred|bf16|[a-z]+?(?P<bits>\d+))\w*\[(?P<sizes>[\d,]*)\]")


def executables() -> list[Any]:
    """The programs for several devices that jax holds compiled; none where this jax does not tell."""
    try:
        return list(jax.devices()[0].client.live_executables())
    except (AttributeError, RuntimeError, NotImplementedError):
        return []


def compiled(
    before: Sequence[Any], batch: int, mesh: Mapping[str, int]
) -> tuple[tuple[Collective, ...] | None, Memory | None]:
    """What XLA made of the parallel function, among what was compiled since `before`: collectives and memory.

    Collectives are those of `read`; None where there is no program. Of several, such as those that lay out
    arguments or results, that with most bytes is read. The memory is that of the program that has most; None
    where jax does not tell.
    """
    known = {id(each) for each in before}
    found: list[tuple[Collective, ...]] = []
    memory: list[Memory] = []
    for each in executables():
        if id(each) in known:
            continue
        try:
            texts = [module.to_string() for module in each.hlo_modules()]
        except (AttributeError, RuntimeError, NotImplementedError):
            continue
        found.append(read("\n".join(texts), batch, mesh))
        with contextlib.suppress(AttributeError, RuntimeError, NotImplementedError):
            memory.append(memory_of(each.get_compiled_memory_stats()))
    return (
        max(found, key=lambda rows: sum(row.bytes for row in rows), default=None),
        max(memory, key=lambda each: each.total, default=None),
    )


def memory_of(stats: Any) -> Memory:
    """The bytes that a program takes on one device, from what XLA says of it."""
    # What a donated argument becomes takes no memory of its own.
    results = stats.output_size_in_bytes - stats.alias_size_in_bytes
    return Memory(stats.argument_size_in_bytes, results, stats.temp_size_in_bytes)


def read(text: str, batch: int, mesh: Mapping[str, int]) -> tuple[Collective, ...]:
    """The collectives in the text of a compiled program, by kind and by the axes of `mesh` they go along.

    Their `batch` is the bytes of arrays in which an axis as long as the `batch` comes out whole. In a loop
    that goes on for as long as its values say, no device starts on a round before all have ended the one
    before; of one whose rounds are known, `times` and `moved` count every round.
    """
    rows: dict[tuple[str, ...], Collective] = {}
    runs, open_loops = _computations(text)
    looped, rounds = _reached(runs, open_loops), _rounds(runs)
    place = ""
    for line in text.splitlines():
        began = COMPUTATION.match(line)
        place = began[1] if began else place
        match = COLLECTIVE.search(line)
        if match is None:
            continue
        axes = tuple(along(match["rest"], mesh) or ()) if len(mesh) > 1 else ()
        taken = whole = 0
        for array in ARRAY.finditer(match["result"]):
            sizes = [int(size) for size in array["sizes"].split(",") if size]
            array_bytes = math.prod(sizes) * width(array["dtype"], array["bits"])
            taken += array_bytes
            whole += array_bytes if batch in sizes else 0
        key = (match["kind"], *axes)
        row = rows.get(key, Collective(match["kind"], axes, 0, 0, 0))
        often = max(rounds.get(place, 1), 1)
        rows[key] = dataclasses.replace(
            row,
            count=row.count + 1,
            bytes=row.bytes + taken,
            batch=row.batch + whole,
            rounds=row.rounds + (place in looped),
            times=row.times + often,
            moved=row.moved + often * taken,
        )
    return tuple(rows[key] for key in sorted(rows))


#: By computation, those that an operation of it runs, each with how often.
Runs: TypeAlias = dict[str, list[tuple[str, int]]]


def _computations(text: str) -> tuple[Runs, list[str]]:
    """Which computations of a program run which, and those of loops without a known number of rounds."""
    runs: Runs = {}
    loops: list[str] = []
    place = ""
    for line in text.splitlines():
        began = COMPUTATION.match(line)
        place = began[1] if began else place
        names = [name for found in RUN.findall(line) for name in found.split(", ") if name]
        often = TRIPS.search(line) if " while(" in line else None
        runs.setdefault(place, []).extend((name, int(often[1]) if often else 1) for name in names)
        if " while(" in line and often is None:
            loops += names
    return runs, loops


def _reached(runs: Runs, start: Sequence[str]) -> set[str]:
    """The computations that are run from those at the `start`, and these."""
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [each for each, _ in runs.get(name, ())]
    return found


def _rounds(runs: Runs) -> dict[str, int]:
    """How often each computation is run in one run of the program; one of a branch as if it were taken."""
    waiting = collections.Counter(name for rows in runs.values() for name, _ in rows)
    found: dict[str, int] = dict.fromkeys(runs.keys() - waiting.keys(), 1)
    ready = list(found)
    # A program is no cycle: a computation is settled once all that run it are.
    while ready:
        place = ready.pop()
        for name, often in runs.get(place, ()):
            found[name] = found.get(name, 0) + found[place] * often
            waiting[name] -= 1
            if not waiting[name]:
                ready.append(name)
    return found


def width(dtype: str, bits: str | None) -> int:
    """Bytes of one number of a dtype as XLA writes it."""
    return 2 if dtype == "bf16" else max(int(bits or 8) // 8, 1)
