"""The worker and the emitted code on every jax the tool is held to: `make matrix`.

Each environment is made once, below build/matrix; interpreters named on the command line are used as
they are. In each, cases are generated with its Python as the user's, in every backend that takes
them, and what was emitted is run beside the original on eight simulated devices; and the table of
what jax removed is held against it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Version of Python, and of jax.
VERSIONS = (("3.10", "0.6.2"), ("3.11", "0.10.2"), ("3.12", "0.12.0.1"))
CASES = (
    "args_and_kwargs",
    "dict_with_table",
    "loops",
    "mixture_by_scan",
    "perplexity",
    "time_major",
    "train_step",
    "until_converged",
    "variance_from_two_means",
)
BACKENDS = ("pmap", "shard_map", "jit")
RUN = """
import sys
import jax
import numpy as np
import {name} as original
from {name}_pmap import {function}

assert len(jax.devices()) == 8
made = original.inputs(0)
keyed = type(made) is tuple and len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict)
args, kwargs = made if keyed else (made, {{}})
want, got = original.{function}(*args, **kwargs), {function}(*args, **kwargs)
assert jax.tree.structure(got) == jax.tree.structure(want)
for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=1e-5)
"""


def environment(python: str, jax: str) -> Path | None:
    """The interpreter of an environment, made where it is not there; None without that Python."""
    folder = ROOT / "build" / "matrix" / f"python{python}-jax{jax}"
    interpreter = folder / "bin" / "python"
    if not (folder / "made").exists():
        found = shutil.which(f"python{python}")
        # What stands in for several versions may have none of this one.
        if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
            return None
        subprocess.run([found, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(interpreter), "-m", "pip", "install", "-q", f"jax=={jax}", "numpy"], check=True)
        (folder / "made").touch()
    return interpreter


def run(interpreter: Path) -> list[str]:
    """What failed under an interpreter."""
    failed = []
    paths = {"PYTHONPATH": str(ROOT / "generator"), "JAX_PLATFORMS": "cpu"}
    base = {**os.environ, **paths, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    table = [str(interpreter), str(ROOT / "tests" / "removals_hold.py")]
    done = subprocess.run(table, env=base, capture_output=True, text=True)
    if done.returncode:
        failed.append(done.stdout + done.stderr[-2000:])
    for case in CASES:
        text = (ROOT / "tests" / "cases" / f"{case}.py").read_text(encoding="utf-8")
        flags = text.partition("\n")[0].removeprefix("# flags: ").replace("this::", f"{case}.py::")
        words = flags.split()
        target = words[1] if "::" in words[1] else f"{case}.py::{words[1]}"
        for backend in BACKENDS:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, f"{case}.py").write_text(re.split(r"^# output", text, flags=re.M)[0])
                command = [sys.executable, "-m", "jax_pmap", "gen", target, *words[2:]]
                command += ["--backend", backend, "--python", str(interpreter), "-o", f"{case}_pmap.py"]
                done = subprocess.run(command, cwd=folder, env=base, capture_output=True, text=True)
                said = done.stderr
                if not done.returncode:
                    program = RUN.format(name=case, function=target.partition("::")[2])
                    words_ = [str(interpreter), "-c", program]
                    done = subprocess.run(words_, cwd=folder, env=base, capture_output=True, text=True)
            print("." if not done.returncode else "F", end="", flush=True)
            if done.returncode or "not held against" in said:
                failed.append(f"{case} --backend {backend}\n{said}\n{done.stderr[-2000:]}")
    return failed


def main() -> int:
    """Print a line for each environment; exit 1 where something failed or is missing."""
    given = [(word, Path(word)) for word in sys.argv[1:]]
    made = given or [(f"Python {p}, jax {j}", environment(p, j)) for p, j in VERSIONS]
    bad = False
    for name, interpreter in made:
        print(f"{name}: ", end="", flush=True)
        failed = ["there is no such Python"] if interpreter is None else run(interpreter)
        print(" ok" if not failed else "\n" + "\n".join(failed), flush=True)
        bad |= bool(failed)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
