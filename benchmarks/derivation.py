"""Print what planning real models at their real sizes takes, as ratios to tracing them, measured in one run.

    python benchmarks/derivation.py
    python benchmarks/derivation.py --only llama --repeat 3

The yardstick is a process that imports the model and traces its step twice. No values are made on either
side: the inputs are shapes. Times are CPU time of a whole process and of those that it starts, memory is the
most that one of them held. Exits with 1 where a command fails.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from timing import environment

MODELS = Path(__file__).resolve().parent / "models"
PYTHON = sys.executable
#: What is measured, in a folder with the model and `sized.py`; `{model}` is the name of its module.
COMMANDS = {
    "plan": f"{PYTHON} -m jax_pmap plan {{model}}.py::train_step --inputs sized.py::abstract_inputs",
    "gen": f"{PYTHON} -m jax_pmap gen {{model}}.py::train_step --inputs sized.py::abstract_inputs --no-run",
}
#: Rows: a title, the module, and what its `abstract_inputs` is called with.
ROWS = (
    ("GPT, 1 x 16", "gpt", '"tiny"'),
    ("GPT, 2 x 64", "gpt", '"small"'),
    ("GPT, 4 x 256, 6 M", "gpt", '"medium"'),
    ("GPT-2 small, 124 M", "gpt", ""),
    ("ResNet-50, 26 M", "resnet", ""),
    ("ViT-B/16, 87 M", "vit", ""),
    ("U-Net, 69 M", "unet", ""),
    ("llama, 1.2 B", "llama", ""),
    *((f"GPT, layers: {layers}", "gpt", f'"small", layers={layers}') for layers in (1, 3, 12, 48)),
)

SIZED = """
import {model}


def abstract_inputs():
    return {model}.abstract_inputs({sizes})
"""

TWICE = """
import jax

import {model}, sized

args = sized.abstract_inputs()
for _ in range(2):
    jax.make_jaxpr(lambda *args: {model}.train_step(*args), axis_env=[("batch", 1)])(*args)
"""


class Used(NamedTuple):
    """What one run of a process took: seconds of CPU time, and MB at most."""

    cpu: float
    memory: float


class Failed(Exception):
    """A command that is measured failed."""


def used(command, folder):
    """`Used` by `command` in `folder`.

    Raises:
        Failed: with the first line that says why.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)  # with all that the process waited for
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            lines = [line.strip() for line in errors if line.strip()]
            told = next((line for line in lines if line.startswith("error")), lines[-1] if lines else "")
            raise Failed(f"exit {process.returncode}: {told}")
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return Used(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit)


def medians(command, folder, repeat):
    """The median of each measure."""
    runs = [used(command, folder) for _ in range(repeat)]
    return Used(*(statistics.median(column) for column in zip(*runs, strict=True)))


def row(title, model, sizes, commands, repeat):
    """Print one row for each command; return whether all of them worked."""
    held = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pyproject.toml").touch()
        shutil.copy(MODELS / f"{model}.py", folder)
        (folder / "sized.py").write_text(SIZED.format(model=model, sizes=sizes))
        (folder / "twice.py").write_text(TWICE.format(model=model))
        traced = medians((PYTHON, "twice.py"), folder, repeat)
        print(f"{title:20} {'traced twice':13} {traced.cpu:7.2f} s {traced.memory:6.0f} MB", flush=True)
        for command in commands:
            print(f"{'':20} {command:13}", end=" ", flush=True)
            try:
                took = medians(COMMANDS[command].format(model=model).split(), folder, repeat)
            except Failed as failed:
                held = False
                print(failed, flush=True)
                continue
            ratios = took.cpu / traced.cpu, took.memory / traced.memory
            print(
                f"{took.cpu:7.2f} s {took.memory:6.0f} MB   time {ratios[0]:5.2f}   memory {ratios[1]:5.2f}",
                flush=True,
            )
    return held


def main():
    """Measure every row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=1, help="repetitions of each run (default 1)")
    parser.add_argument("--only", default="", help="rows whose title has this in it")
    parser.add_argument("--command", choices=COMMANDS, action="append", help="one command alone")
    options = parser.parse_args()
    rows = [each for each in ROWS if options.only.lower() in each[0].lower()]
    held = [row(*each, options.command or COMMANDS, options.repeat) for each in rows]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
