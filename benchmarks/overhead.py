"""What the emitted drop-in costs at every call, beside the compiled step that somebody would call instead."""

import re
import subprocess
import sys

import sources
from timing import environment, timed

DEVICES = 2
#: Of a call with a batch on the host, to `jax.jit` over the same devices with the same batch.
MOST = 1.1
#: CPU time of a call with a batch that lies on the devices, beyond that of the mapped function itself.
MICROSECONDS = 50

CALLS = """\
import os
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count={devices}"

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import step
import step_pmap
import step_shard_map

mesh = Mesh(np.array(jax.devices()), ("batch",))
whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))
jitted = jax.jit(step.train_step, in_shardings=(whole, whole, split), out_shardings=whole)
rng = np.random.default_rng(0)
params = {{
    "w1": rng.normal(size=(64, 256)).astype(np.float32) / 8,
    "b1": np.zeros(256, np.float32),
    "w2": rng.normal(size=(256, 1)).astype(np.float32) / 16,
}}
state = jax.device_put((params, step.tx.init(params)), whole)
batch = {{name: rng.normal(size=(256, size)).astype(np.float32) for name, size in (("x", 64), ("y", 1))}}
stacked = jax.device_put(step_pmap.shard(batch), step_pmap.sharding(step_pmap.AXIS))
placed = jax.device_put(batch, split)
calls = {{
    "jit": (jitted, batch),
    "pmap": (step_pmap.train_step, batch),
    "shard_map": (step_shard_map.train_step, batch),
    "pmap placed": (step_pmap.train_step, stacked),
    "pmap mapped": (step_pmap.p_train_step, stacked),
    "shard_map placed": (step_shard_map.train_step, placed),
    "shard_map mapped": (step_shard_map.compiled(), placed),
}}
# CPU time of all threads, and of the caller's alone.
least = dict.fromkeys(calls, (float("inf"), float("inf")))
# They take turns, so that a busy moment of the machine hits all; the least of many is that of a quiet one.
for turn in range({turns}):
    for name, (function, given) in calls.items():
        jax.block_until_ready(function(*state, given))
        clocks = time.process_time, time.thread_time
        before = [clock() for clock in clocks]
        for _ in range(10):
            jax.block_until_ready(function(*state, given))
        spent = [(clock() - start) / 10 for clock, start in zip(clocks, before)]
        least[name] = tuple(map(min, least[name], spent))
for name, (process, thread) in least.items():
    print(f"{{name}}: {{process * 1e6:.1f}} {{thread * 1e6:.1f}}")
"""


def of_drop_ins(folder, generate, turns=60):
    """Print what a call of the drop-ins costs in CPU time; return whether it is within the bounds."""
    (folder / "step.py").write_text(sources.TRAIN_STEP)
    for backend in ("pmap", "shard_map"):
        target = ("step.py::train_step", "--inputs", "step.py::inputs", "--no-run", "--backend", backend)
        timed((*generate, *target, "-o", f"step_{backend}.py", "--force"), folder)
    (folder / "calls.py").write_text(CALLS.format(devices=DEVICES, turns=turns))
    command = (sys.executable, "calls.py")
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    rows = re.findall(r"(.+): ([\d.]+) ([\d.]+)", done.stdout)
    spent = {name: float(process) for name, process, _ in rows}
    # Threads of the devices that wait for work would count against the caller's few microseconds.
    caller = {name: float(thread) for name, _, thread in rows}
    print(f"calls of the drop-in on {DEVICES} devices, microseconds of CPU time")
    held = True
    for backend in ("pmap", "shard_map"):
        ratio = spent[backend] / spent["jit"]
        more = caller[f"{backend} placed"] - caller[f"{backend} mapped"]
        held &= ratio <= MOST and more <= MICROSECONDS
        for what, found, most in (
            (f"batch on the host: {spent[backend]:.0f} / jit {spent['jit']:.0f}, ratio", ratio, MOST),
            ("batch on the devices: beyond the mapped function", more, MICROSECONDS),
        ):
            verdict = "ok" if found <= most else "TOO SLOW"
            print(f"  {backend:9} {what} {found:.2f}   at most {most}   {verdict}", flush=True)
    return held
