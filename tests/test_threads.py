"""Work in threads, as `check` and `verify` do theirs."""

import ast
import gc
import sys

from jax_pmap.threads import at_once


class Cycle:
    """Garbage that runs Python when it is collected."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(200):
            pass


def test_files_are_parsed_at_once_whatever_is_collected() -> None:
    text = "\n".join(f"def f{n}(x):\n    return [x + {n}, (x, -x)]" for n in range(300))
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()

    def work(number: int) -> int:
        for _ in range(8):
            Cycle()
            ast.parse(text)
        return number

    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    try:
        assert at_once(work, range(4)) == [0, 1, 2, 3]
    finally:
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
    assert gc.isenabled()
