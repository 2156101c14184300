"""The share of functions that are proved, and a check of the proved ones that the tool has no part in.

Every function of cases.py is given to `jax-pmap gen`. Emitted code is then run on eight simulated devices
with inputs of other batch sizes and other values, and compared with the original. Prints a line a function
and the shares; exits with 1 where an outcome is not the expected one.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
GENERATOR = HERE.parent / "generator"
#: Batch sizes and scales of the inputs of the independent check; the proof has 24 and its own.
SIZES, SCALES = (40, 48, 96), (1.0, 3.0, 0.2)

FOLDER = """
import cases

def __getattr__(name):
    inputs = cases.CASES[name.removeprefix("inputs_")]
    return lambda seed=0: inputs(cases.Source(seed), 24)
"""

CHECK = """
import importlib.util, sys
import jax, numpy as np
import cases

name, path, sizes, scales = sys.argv[1], sys.argv[2], eval(sys.argv[3]), eval(sys.argv[4])
spec = importlib.util.spec_from_file_location("emitted", path)
emitted = importlib.util.module_from_spec(spec)
spec.loader.exec_module(emitted)
for seed, (size, scale) in enumerate(zip(sizes, scales)):
    source = cases.Source(100 + seed)
    args = cases.CASES[name](source, size)
    scaled = lambda leaf: leaf * np.float32(scale) if getattr(leaf, "dtype", None) == np.float32 else leaf
    args = jax.tree.map(scaled, args)
    dtypes = [getattr(leaf, "dtype", float) for leaf in jax.tree.leaves(args)]
    keys = any(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) for dtype in dtypes)
    want, got = getattr(cases, name)(*args), getattr(emitted, name)(*args)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        if keys:
            assert a.shape == b.shape  # Draws of one device and of several differ by intention.
            continue
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        error = np.max(np.abs(a - b)) / max(np.max(np.abs(a)), 1e-6)
        assert error < 2e-3, (size, scale, error)
"""


def outcome(name, folder):
    """What `gen` says of a function, and whether its code holds on other inputs."""
    out = folder / f"{name}_parallel.py"
    environment = {**os.environ, "PYTHONPATH": str(GENERATOR), "JAX_PLATFORMS": "cpu"}
    words = ["gen", f"cases.py::{name}", "--inputs", f"inputs.py::inputs_{name}", "-o", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "jax_pmap", *words, "-q"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        code = done.stderr.partition("[")[2].partition("]")[0] if "error[" in done.stderr else "crash"
        return code, done.stderr.strip().partition("\n")[0]
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    environment["PYTHONPATH"] = str(folder)
    checked = subprocess.run(
        [sys.executable, "-c", CHECK, name, str(out), repr(SIZES), repr(SCALES)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if checked.returncode:
        return "WRONG", checked.stderr.strip().rpartition("\n")[2]
    derived = "derived for all inputs and device counts" in out.read_text(encoding="utf-8")
    return "proved", "derived" if derived else "tried on inputs"


def main():
    """Run every case, two at a time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="functions of cases.py; all where none is named")
    names = parser.parse_args().names
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.path.insert(0, str(HERE))
    import cases

    names = names or list(cases.CASES)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "pyproject.toml").touch()
        (folder / "cases.py").write_bytes((HERE / "cases.py").read_bytes())
        (folder / "inputs.py").write_text(FOLDER)
        found, derived = {}, 0
        with ThreadPoolExecutor(2) as pool:
            for name, (what, why) in zip(names, pool.map(lambda n: outcome(n, folder), names), strict=True):
                found[name] = what
                derived += why == "derived"
                expected = cases.REFUSED.get(name, "proved")
                sign = "" if what == expected else f"   expected {expected}"
                print(f"{name:24} {what:8}{sign} {why[:100]}".rstrip(), flush=True)
    proved = sum(what == "proved" for what in found.values())
    rightly = sum(what == cases.REFUSED.get(name) for name, what in found.items())
    wrong = sum(what == "WRONG" for what in found.values())
    rest = len(found) - proved - rightly - wrong
    print(
        f"{len(found)} functions: {proved} proved and right on other inputs, {rightly} rightly refused, "
        f"{rest} refused that could be done, {wrong} proved and wrong; {derived} derived for all inputs"
    )
    return int(any(found[name] != cases.REFUSED.get(name, "proved") for name in found))


if __name__ == "__main__":
    sys.exit(main())
