"""Run a generated file beside examples/train.py on eight simulated devices and print how far they differ.

python examples/compare.py build/demo/train_pmap.py
"""

import importlib.util
import os
import sys
from pathlib import Path

DEVICES = 8
STEPS = 5

# Both are read when jax starts, so they have to be set before it is imported.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"

import jax  # noqa: E402
import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))  # the generated file imports `train` too

import train  # noqa: E402


def load(path):
    """The module in the file `path`."""
    spec = importlib.util.spec_from_file_location("generated", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def largest_difference(left, right):
    """The largest absolute difference between two trees of arrays."""
    gaps = jax.tree.map(lambda a, b: np.max(np.abs(np.asarray(a) - np.asarray(b)), initial=0), left, right)
    return max(jax.tree.leaves(gaps))


def main(path):
    parallel = load(path)
    one = jax.jit(train.train_step)
    params, opt_state, _ = train.example_inputs()
    state_one = state_many = (params, opt_state)

    print(f"step  loss, 1 device  loss, {jax.device_count()} devices  largest parameter difference")
    for step in range(STEPS):
        batch = train.example_inputs(seed=step)[2]
        *state_one, metrics_one = one(*state_one, batch)
        *state_many, metrics_many = parallel.train_step(*state_many, batch)
        gap = largest_difference(state_one[0], state_many[0])
        print(f"{step:4}  {metrics_one['loss']:14.6f}  {metrics_many['loss']:15.6f}  {gap:28.1e}")
        if gap > 1e-5:
            sys.exit("the two disagree")


if __name__ == "__main__":
    main(*sys.argv[1:])
