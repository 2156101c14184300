"""What XLA makes of the emitted code, beside what it makes of the same step written by hand.

    python benchmarks/quality.py              # an MLP, a small GPT and a small ResNet in all their forms
    python benchmarks/quality.py --only gpt

On eight simulated devices: the all-reduces of the compiled step and their bytes, the memory of one device,
and the time of a step, beside those of the same form by hand and of the fastest. That is among the forms and
what libraries make of the step: `equinox.filter_pmap` of the same body; and parajax, which divides a function
of each example alone and knows no sum over all of them, for the predictions of the MLP. Exits with 1 where
more bytes are sent than by hand in that form, or where memory or time are beyond the bounds.
"""

import argparse
import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

import sources
from timing import environment

DEVICES = 8
#: To the same form by hand: the memory of one device, and the time of a step.
MEMORY, TIME = 1.02, 1.03
MODELS = Path(__file__).resolve().parent / "models"
PREDICTED = "(lambda params, _, batch: (params, batch['x']))(*mlp.inputs(0, 65536, 512))"


@dataclasses.dataclass(frozen=True)
class Row:
    """What is measured: a function of a module, and what is made of it.

    Attributes:
        module: The module's name.
        inputs: An expression of its arguments.
        state: How many arguments are whole on every device; the batch is in those behind them.
        target: The function's name.
        forms: The backends that it is emitted for.
        results: How its results are divided: None for whole ones, 0 for shares of the batch.
    """

    module: str
    inputs: str
    state: int
    target: str = "train_step"
    forms: tuple[str, ...] = ("pmap", "shard_map", "jit")
    results: int | None = None


ROWS = {
    "mlp": Row("mlp", "mlp.inputs(0, 512, 512)", 2),
    "predict": Row("mlp", PREDICTED, 1, target="predict", results=0),
    "gpt": Row("gpt", "gpt.inputs(**gpt.SIZES['small'], batch=64)", 1),
    # Its layers have the name of an axis, which there is none of under jit.
    "resnet": Row("resnet", "resnet.inputs(batch=64, width=8)", 1, forms=("pmap", "shard_map")),
}

GIVEN = """\
import {row.module}


def given():
    return {row.inputs}
"""

COMPARE = """\
import functools
import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count={devices}"
sys.path.insert(0, {benchmarks!r})

import equinox as eqx
import jax
import numpy as np
import parajax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import by_hand
import given
import {row.module}
from jax_pmap.worker.compiled import memory_of, read

arguments, state = given.given(), {row.state}
rest = len(arguments) - state
mesh = Mesh(np.array(jax.devices()), ("batch",))
whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))
body = by_hand.{body}({row.module})
out_axes, out = {row.results}, {{None: whole, 0: split}}[{row.results}]
in_axes = (*[None] * state, *[0] * rest)
specs = (*[P()] * state, *[P("batch")] * rest)
shardings = (*[whole] * state, *[split] * rest)
rows = (*jax.device_put(arguments[:state], whole), *jax.device_put(arguments[state:], split))


def stack(tree):
    return jax.tree.map(lambda leaf: np.reshape(leaf, (len(jax.devices()), -1, *leaf.shape[1:])), tree)


stacked = (*rows[:state], *jax.device_put(stack(arguments[state:]), split))
calls = {{}}
for form in {row.forms!r}:
    if form == "pmap":
        by = jax.pmap(body, axis_name="batch", in_axes=in_axes, out_axes=out_axes)
    elif form == "shard_map":
        inside = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out.spec, check_vma=False)
        by = jax.jit(inside, in_shardings=shardings, out_shardings=out)
    else:
        by = jax.jit({row.module}.{row.target}, in_shardings=shardings, out_shardings=out)
    emitted = __import__("by_" + form)
    ours = emitted.p_{row.target} if form == "pmap" else emitted.compiled()
    calls["by hand", form] = by, stacked if form == "pmap" else rows
    calls["emitted", form] = ours, stacked if form == "pmap" else rows
by = eqx.filter_pmap(body, axis_name="batch", in_axes=in_axes, out_axes=out_axes)
libraries = {{"filter_pmap": (by, stacked)}}
if out_axes == 0:
    by = parajax.parallelize(functools.partial(body, *rows[:state]))
    libraries["parajax"] = by, rows[state:]
calls.update({{("library", name): call for name, call in libraries.items()}})
least = dict.fromkeys(calls, float("inf"))
# They take turns, so that a busy moment of the machine hits all; the least of many is that of a quiet one.
for turn in range({turns}):
    for key, (function, values) in calls.items():
        jax.block_until_ready(function(*values))
        start = time.perf_counter()
        jax.block_until_ready(function(*values))
        least[key] = min(least[key], time.perf_counter() - start)
for (who, form), (function, values) in calls.items():
    if who == "library":
        print(who, form, least[who, form])
        continue
    program = function.lower(*values).compile()
    found = read(program.as_text(), 0, {{"batch": len(jax.devices())}})
    memory = memory_of(program.memory_analysis()).total
    count, size = sum(row.count for row in found), sum(row.bytes for row in found)
    print(who.replace(" ", "_"), form, count, size, memory, least[who, form])
"""


def within_bounds(name, folder, turns):
    """Print the rows of one model; return whether all are within the bounds."""
    row = ROWS[name]
    source = sources.TRAIN_STEP if row.module == "mlp" else (MODELS / f"{row.module}.py").read_text()
    (folder / f"{row.module}.py").write_text(source)
    (folder / "given.py").write_text(GIVEN.format(row=row))
    for form in row.forms:
        target = (f"{row.module}.py::{row.target}", "--axis-name", "batch", "--inputs", "given.py::given")
        made = ("--backend", form, "--no-run", "-o", f"by_{form}.py", "--force")
        run(folder, "-m", "jax_pmap", "gen", *target, *made)
    here = str(Path(__file__).resolve().parent)
    text = COMPARE.format(devices=DEVICES, benchmarks=here, row=row, body=name, turns=turns)
    (folder / "compare.py").write_text(text)
    found = {}
    for line in run(folder, "compare.py").splitlines():
        who, form, *numbers = line.split()
        found[who, form] = [float(number) for number in numbers]
    times = {form: numbers[-1] for (who, form), numbers in found.items() if who != "emitted"}
    fastest = min(times.values())
    good = True
    for form in row.forms:
        count, size, memory, seconds = found["emitted", form]
        others, sent, used, taken = found["by_hand", form]
        met = size <= sent and memory <= MEMORY * used and seconds <= TIME * taken
        good &= met
        print(
            f"{name:8} {form:10} all-reduces {count:.0f} ({size / 1e3:,.0f} kB), by hand {others:.0f} "
            f"({sent / 1e3:,.0f} kB); memory {memory / used:.2f}, time {seconds / taken:.2f}, of "
            f"the fastest {seconds / fastest:.2f}{'' if met else '  <- beyond the bounds'}"
        )
    ranked = sorted(times, key=times.__getitem__)
    print(f"{name:8} fastest first: " + ", ".join(f"{form} {times[form] / fastest:.2f}" for form in ranked))
    return good


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
    good = True
    for name in ROWS if options.only is None else (options.only,):
        with tempfile.TemporaryDirectory() as folder:
            good &= within_bounds(name, Path(folder), options.turns)
    return not good


if __name__ == "__main__":
    sys.exit(main())
