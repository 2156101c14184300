"""How long `check` takes: over unrelated files, an unchanged tree, and generated files to prove again."""

import shutil
import sys

import sources
from timing import ratio_of_medians, timed

CHECK = (sys.executable, "-m", "jax_pmap", "check")
FILES, LINES = 500, 300
GENERATED = 10


def unrelated(folder, repeat):
    """A cold `check` of 500 files of 300 lines against compiling them; and the seconds of a warm one."""
    tree = folder / "tree"
    tree.mkdir()
    body = "".join(f"def f{n}(x):\n    return x + {n}\n\n" for n in range(LINES // 3))
    for number in range(FILES):
        (tree / f"m{number}.py").write_text(body)
    cold = (sys.executable, "-c", _cold(), str(tree), *CHECK, "tree")
    compiled = (sys.executable, "-c", _cold(), str(tree), sys.executable, "-m", "compileall", "-q", "tree")
    ours = f"check, cold, {FILES} files of {LINES} lines"
    held = ratio_of_medians(ours, cold, "compileall -q, cold", compiled, 2.0, folder, repeat)
    timed((*CHECK, "tree"), folder)
    warm = min(timed((*CHECK, "tree"), folder).clock for _ in range(repeat))
    print(f"check, warm: {warm:.2f} s   at most 1 s   {'ok' if warm < 1 else 'TOO SLOW'}", flush=True)
    return held and warm < 1


def _cold():
    """A program that forgets what was kept of the tree, then runs the rest of its command line."""
    return (
        "import shutil, subprocess, sys; "
        "shutil.rmtree(sys.argv[1] + '/__pycache__', True); shutil.rmtree('.jax-pmap-cache', True); "
        "sys.exit(subprocess.call(sys.argv[2:]))"
    )


def proved_again(folder, generate):
    """Ten generated files proved again by one `check` against ten runs of `gen`."""
    project = folder / "generated"
    project.mkdir()
    (project / "pyproject.toml").write_text("")
    (project / "step.py").write_text(sources.TRAIN_STEP)
    alone = 0.0
    for number in range(GENERATED):
        name = f"step{number}.py"
        shutil.copy(project / "step.py", project / name)
        words = (f"{name}::train_step", "--inputs", f"{name}::inputs", "-o", f"step{number}_pmap.py")
        alone += timed((*generate, *words), project).clock
    together = timed((*CHECK, "--no-cache"), project).clock
    ratio = together / alone
    verdict = "ok" if ratio <= 0.5 else "TOO SLOW"
    print(f"{GENERATED} generated files proved again: {together:.1f} s")
    print(f"{GENERATED} runs of gen: {alone:.1f} s")
    print(f"  {ratio:.2f}   at most 0.5   {verdict}", flush=True)
    return ratio <= 0.5
