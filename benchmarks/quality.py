"""What XLA makes of the emitted code, beside what it makes of the same step written by hand.

    python benchmarks/quality.py              # an MLP, a small GPT and a small ResNet in all their forms
    python benchmarks/quality.py --only gpt

On eight simulated devices: the all-reduces of the compiled step and their bytes, the memory of one device,
and the time of a step, beside those of the same form by hand and of the fastest. Exits with 1 where more
bytes are sent than by hand in that form, or where memory or time are beyond the bounds.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import sources
from timing import environment

DEVICES = 8
FORMS = ("pmap", "shard_map", "jit")
#: To the same form by hand: the memory of one device, and the time of a step.
MEMORY, TIME = 1.02, 1.03
MODELS = Path(__file__).resolve().parent / "models"

#: By model: its module, what makes the inputs, how many arguments are state, and the forms it has.
ROWS = {
    "mlp": ("mlp", "mlp.inputs(0, 512, 512)", 2, FORMS),
    "gpt": ("gpt", "gpt.inputs(**gpt.SIZES['small'], batch=64)", 1, FORMS),
    # Its layers have the name of an axis, which there is none of under jit.
    "resnet": ("resnet", "resnet.inputs(batch=64, width=8)", 1, FORMS[:2]),
}

GIVEN = """\
import {module}


def given():
    return {inputs}
"""

COMPARE = """\
import functools
import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count={devices}"
sys.path.insert(0, {benchmarks!r})

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import by_hand
import given
import {module}
from jax_pmap.worker.compiled import memory_of, read

arguments, state = given.given(), {state}
rest = len(arguments) - state
mesh = Mesh(np.array(jax.devices()), ("batch",))
whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))
body = by_hand.{module}({module})
in_axes = (*[None] * state, *[0] * rest)
specs = (*[P()] * state, *[P("batch")] * rest)
shardings = (*[whole] * state, *[split] * rest)
rows = (*jax.device_put(arguments[:state], whole), *jax.device_put(arguments[state:], split))


def stack(tree):
    return jax.tree.map(lambda leaf: np.reshape(leaf, (len(jax.devices()), -1, *leaf.shape[1:])), tree)


stacked = (*rows[:state], *jax.device_put(stack(arguments[state:]), split))
calls = {{}}
for form in {forms!r}:
    if form == "pmap":
        by = jax.pmap(body, axis_name="batch", in_axes=in_axes, out_axes=None)
    elif form == "shard_map":
        inside = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
        by = jax.jit(inside, in_shardings=shardings, out_shardings=whole)
    else:
        by = jax.jit({module}.train_step, in_shardings=shardings, out_shardings=whole)
    emitted = __import__("by_" + form)
    ours = emitted.p_train_step if form == "pmap" else emitted.compiled()
    calls["by hand", form] = by, stacked if form == "pmap" else rows
    calls["emitted", form] = ours, stacked if form == "pmap" else rows
least = dict.fromkeys(calls, float("inf"))
# They take turns, so that a busy moment of the machine hits all; the least of many is that of a quiet one.
for turn in range({turns}):
    for key, (function, values) in calls.items():
        jax.block_until_ready(function(*values))
        start = time.perf_counter()
        jax.block_until_ready(function(*values))
        least[key] = min(least[key], time.perf_counter() - start)
for (who, form), (function, values) in calls.items():
    program = function.lower(*values).compile()
    found = read(program.as_text(), 0, {{"batch": len(jax.devices())}})
    memory = memory_of(program.memory_analysis()).total
    count, size = sum(row.count for row in found), sum(row.bytes for row in found)
    print(who.replace(" ", "_"), form, count, size, memory, least[who, form])
"""


def of_emitted(name, folder, turns):
    """Print the rows of one model; return whether all are within the bounds."""
    module, inputs, state, forms = ROWS[name]
    text = sources.TRAIN_STEP if name == "mlp" else (MODELS / f"{module}.py").read_text()
    (folder / f"{module}.py").write_text(text)
    (folder / "given.py").write_text(GIVEN.format(module=module, inputs=inputs))
    for form in forms:
        target = (f"{module}.py::train_step", "--axis-name", "batch", "--inputs", "given.py::given")
        made = ("--backend", form, "--no-run", "-o", f"by_{form}.py", "--force")
        run(folder, "-m", "jax_pmap", "gen", *target, *made)
    (folder / "compare.py").write_text(
        COMPARE.format(
            devices=DEVICES,
            benchmarks=str(Path(__file__).resolve().parent),
            module=module,
            state=state,
            forms=forms,
            turns=turns,
        )
    )
    found = {}
    for line in run(folder, "compare.py").splitlines():
        who, form, *numbers = line.split()
        found[who, form] = [float(number) for number in numbers]
    fastest = min(row[3] for (who, _), row in found.items() if who == "by_hand")
    held = True
    for form in forms:
        count, size, memory, seconds = found["emitted", form]
        others, sent, held_by_hand, taken = found["by_hand", form]
        good = size <= sent and memory <= MEMORY * held_by_hand and seconds <= TIME * taken
        held &= good
        print(
            f"{name:7} {form:10} all-reduces {count:.0f} ({size / 1e3:,.0f} kB), by hand {others:.0f} "
            f"({sent / 1e3:,.0f} kB); memory {memory / held_by_hand:.2f}, time {seconds / taken:.2f}, of "
            f"the fastest by hand {seconds / fastest:.2f}{'' if good else '  <- beyond the bounds'}"
        )
    return held


def run(folder, *command):
    """What a Python command prints.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run(
        (sys.executable, *command), cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=30, help="times that each step is timed (default 30)")
    parser.add_argument("--only", choices=tuple(ROWS), help="one model alone")
    options = parser.parse_args()
    held = True
    for name in ROWS if options.only is None else (options.only,):
        with tempfile.TemporaryDirectory() as folder:
            held &= of_emitted(name, Path(folder), options.turns)
    return not held


if __name__ == "__main__":
    sys.exit(main())
