"""What JP123 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import os

import jax.numpy as jnp

table = jnp.zeros((4, 4))
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
""",
)
VALID = (
    """\
import os

import jax
import jax.numpy as jnp


def later():
    return jnp.zeros(3)


dtype = jnp.dtype("float32")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
print(jax.device_count())
os.environ["XLA_FLAGS"] = "--xla_dump_to=/tmp/dump"
double = jax.pmap(lambda x: 2 * x)
""",
    """\
import os
import subprocess

import jax

print(jax.devices())
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
subprocess.run(["python", "for_the_child.py"], check=True)
""",
)
