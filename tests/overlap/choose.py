"""Which tests to run where not all can be: those that reach most lines in the time there is."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping

#: What a line counts that no chosen test, one, or two of them reach so far; further ones count nothing.
COUNTS = (1.0, 0.3, 0.1)


def choose(
    lines: Mapping[str, Collection[int]],
    seconds: Mapping[str, float],
    budget: float,
    always: Collection[str],
) -> list[str]:
    """The chosen tests: first those that are always run, then those that add most for their time.

    Args:
        lines: What each test reaches.
        seconds: How long each test takes.
        budget: How long all may take, in seconds.
        always: Tests that are chosen whatever they add.

    Example:
        >>> choose({"a": [1, 2], "b": [1, 2], "c": [3]}, {"a": 5, "b": 3, "c": 1}, 4, [])
        ['c', 'b']
    """
    reached: Counter[int] = Counter()
    chosen = list(always)
    for test in chosen:
        reached.update(lines[test])
    left = budget - sum(seconds[test] for test in chosen)

    def gain(test: str) -> float:
        counts = (COUNTS[reached[line]] for line in lines[test] if reached[line] < len(COUNTS))
        return sum(counts) / seconds[test]

    waiting = [(-gain(test), test) for test in lines.keys() - set(chosen)]
    heapq.heapify(waiting)
    while waiting:
        _, test = heapq.heappop(waiting)
        now = -gain(test)
        if waiting and now > waiting[0][0]:  # Others have reached its lines since it was put there.
            heapq.heappush(waiting, (now, test))
        elif now and seconds[test] <= left:
            chosen.append(test)
            reached.update(lines[test])
            left -= seconds[test]
    return chosen
