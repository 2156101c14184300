"""JP019: the program does not call the target."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP019",
    title="the program does not call the target",
    exit_code=2,
    meaning=(
        "The program named by `--run` failed, or came to its end, before it called the target. Its own "
        "error, or what it printed last, is shown with the message."
    ),
    why=(
        "The arguments of that call, and what the function takes from the running program, are the example "
        "everything is observed and proved on."
    ),
    cure=(
        "Run the command by hand first. Give it the options under which it gets to the call: a small data "
        "set, one step. It runs in the current folder, with standard input closed and one CPU device."
    ),
    example="""\
import argparse

import jax.numpy as jnp


def loss(w, x):
    return jnp.mean((x @ w) ** 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=0)
    for _ in range(parser.parse_args().steps):
        loss(jnp.ones(4), jnp.ones((24, 4)))


if __name__ == "__main__":
    main()
""",
    command='jax-pmap plan train.py::loss --run "python train.py"',
    fixed="""\
import argparse

import jax.numpy as jnp


def loss(w, x):
    return jnp.mean((x @ w) ** 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1)
    for _ in range(parser.parse_args().steps):
        loss(jnp.ones(4), jnp.arange(96.0).reshape(24, 4) / 96)


if __name__ == "__main__":
    main()
""",
)
