"""How time grows: with statements of the body, leaves of the parameters, modules of the project."""

import sources
from timing import timed

SIZES = (10, 100, 1000)
#: Time per unit may grow by this much from the middle size to the largest and still count as linear:
#: XLA's own compile time is not quite linear in the number of operations.
SLACK = 1.5
#: A run that is too slow is to be measured, not ended by the time limit.
PATIENT = ("--timeout", "3600")


def statements(folder, generate):
    """`gen` on bodies of 10, 100 and 1,000 statements, derived alone and proved."""
    held = True
    for name, options in (("derived", ("--no-run",)), ("proved", ())):
        held &= grow(
            f"statements, {name}",
            lambda size: {"body.py": sources.many_statements(size)},
            lambda options=options: (*generate, "body.py::f", "--arg", "x=f32[24,4]", *PATIENT, *options),
            folder,
        )
    return held


def leaves(folder, generate):
    """`gen` of a training step with 10, 100 and 1,000 parameter arrays, proved."""
    return grow(
        "parameter leaves, proved",
        lambda size: {"wide.py": sources.many_leaves(size)},
        lambda: (*generate, "wide.py::train_step", "--inputs", "wide.py::inputs", *PATIENT),
        folder,
    )


def modules(folder, generate):
    """`gen` of a small step whose file imports 10, 100 and 1,000 modules of the project's, derived alone."""
    return grow(
        "modules of the project, derived",
        sources.many_modules,
        lambda: (*generate, "step.py::step", "--inputs", "step.py::inputs", *PATIENT, "--no-run"),
        folder,
    )


def grow(title, files, command, folder):
    """Print processor time, and that per unit, for every size; return whether the growth is linear.

    What a run costs whatever the size is taken off first: the time of a target of one unit.
    """

    def write(size):
        for name, text in files(size).items():
            (folder / name).write_text(text)

    write(1)
    timed(command(), folder)
    base = timed(command(), folder).cpu
    print(f"{title}: one unit takes {base:.2f} s; beyond that")
    per_unit = []
    for size in SIZES:
        write(size)
        more = max(timed(command(), folder).cpu - base, 0.0)
        per_unit.append(more / size)
        print(f"  {size:5}  {more:8.2f} s  {1000 * more / size:8.2f} ms each", flush=True)
    ratio = per_unit[-1] / max(per_unit[-2], 1e-4)
    held = ratio <= SLACK
    verdict = "ok" if held else "NOT LINEAR"
    print(
        f"  each of {SIZES[-1]} / each of {SIZES[-2]}: {ratio:.2f}   at most {SLACK}   {verdict}", flush=True
    )
    return held
