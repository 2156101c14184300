"""`make sweep`: what `gen` has proved, the other commands and the assertion accept, function by function.

`gen` emits the function as its command says. Then `verify` has to find the file equal to the original,
`check` to say nothing of it, `check --accept` to prove it after an edit that changes nothing, and
`assert_parallel_equal` to pass. Results are lines of JSON. What the file of results has is not asked again:
a sweep may be stopped.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from click.testing import CliRunner
from fork_server import ForkServer
from project import simulated

from jax_pmap import session
from jax_pmap.cli import main
from sweep.targets import REPOSITORY, Target, targets

#: Every third function is also emitted for another backend, in turns.
OTHERS = ("shard_map", "", "", "jit", "", "")
ASSERTION = """\
import inspect

import {emitted} as emitted
import {original} as original

from jax_pmap.inputs.spec import parse_argument
from jax_pmap.testing import assert_parallel_equal
from jax_pmap.worker.specs import materialize

parameters = inspect.signature(original.{function}).parameters
any_name = any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def call(seed):
    if not {make!r}:
        given = enumerate(map(parse_argument, {args!r}))
        return (), {{name: materialize(spec, seed + i, vars(original)) for i, (name, spec) in given}}
    make = getattr(__import__({module!r}), {make!r})
    made = make(seed) if "seed" in inspect.signature(make).parameters else make()
    if type(made) is not tuple:
        return (made,), {{}}
    named = len(made) == 2 and type(made[0]) in (tuple, list) and type(made[1]) is dict
    return made if named and (any_name or set(made[1]) <= set(parameters)) else (made, {{}})


def test_equal():
    for seed in {seeds}:
        args, kwargs = call(seed)
        assert_parallel_equal(emitted.{function}, original.{function}, *args, counts={counts}, **kwargs)
"""


class Steps:
    """What is asked about one function."""

    def __init__(self, target: Target) -> None:
        self.target = target
        file, _, self.function = target.words[0].partition("::")
        self.module = Path(file).stem
        #: What each step said where it was not what it should be; else "ok".
        self.found: dict[str, str] = {}
        #: All that the last command printed.
        self.said = ""

    def all(self, folder: Path, other: str = "") -> dict[str, str]:
        """The results, in a new folder that becomes the current one; for another backend as well."""
        os.chdir(folder)
        for name, text in {"pyproject.toml": "", **self.target.files}.items():
            Path(name).write_text(text, encoding="utf-8")
        if self.emit("pmap", self.target.words):
            made = Path(f"{self.module}_pmap.py")
            self.run("check", "check", made.name)
            made.write_text(edited(made.read_text(encoding="utf-8"), self.function), encoding="utf-8")
            self.run("edited", "check", made.name, code=1, says="JP151")
            self.run("accept", "check", "--accept", made.name)
            self.run("accepted", "check", made.name)
        if other and not self.target.options("--backend", "--helper"):
            self.emit(other, (*self.target.words, "--backend", other))
        return self.found

    def run(self, step: str, *words: str, code: int = 0, says: str = "") -> bool:
        """Run a command, which has to print nothing but what it `says`."""
        result = CliRunner().invoke(main, [*words, "--python", sys.executable])
        self.said = result.output
        right = result.exit_code == code and (says in result.stdout if says else not result.stdout)
        self.found[step] = "ok" if right else f"{shlex.join(words)}\nexit {result.exit_code}\n{result.output}"
        return right

    def emit(self, how: str, words: tuple[str, ...]) -> bool:
        """Emit the function, and hold what `verify` and the assertion say to it."""
        made, step = f"{self.module}_{how}", f"gen {how}"
        if not self.run(step, "gen", *words, "-o", f"{made}.py"):
            if how != "pmap" and "error[JP04" in self.found[step]:
                self.found[step] = "ok"  # Not every function has a form for every backend.
            return False
        if "the inputs are shapes alone" in self.said:
            return False  # The others call both functions.
        shared = [word for option in self.target.options(*of_verify()) for word in option]
        parallel = f"{made}.py::{self.function}"
        self.run(f"verify {how}", "verify", parallel, "--against", words[0], *shared)
        self.hold(f"assert {how}", made, (0, 1), "0")
        self.hold(f"assert x64 {how}", made, (2,), "1")
        return True

    def hold(self, step: str, made: str, seeds: tuple[int, ...], x64: str) -> None:
        """Run a test with the assertion, where the inputs are said."""
        inputs = [each[1].partition("::") for each in self.target.options("--inputs")]
        args = [each[1] for each in self.target.options("--arg")]
        if not inputs and not args:
            return
        module, _, make = inputs[0] if inputs else ("", "", "")
        text = ASSERTION.format(
            emitted=made,
            original=self.module,
            function=self.function,
            module=module.removesuffix(".py"),
            make=make,
            args=args,
            seeds=seeds,
            counts=self.counts(),
        )
        Path("test_it.py").write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += ["-W", "default", "test_it.py"]  # What a library warns of is no error for its users.
        environment = {**simulated(8), "JAX_ENABLE_X64": x64}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        self.found[step] = "ok" if done.returncode == 0 else done.stdout

    def counts(self) -> list[int] | None:
        """The device counts that code for chosen devices, or for a mesh, takes; None for all."""
        sizes = [re.findall(r"=(\d+)", each[1]) for each in self.target.options("--mesh")]
        if sizes:
            return [math.prod(map(int, sizes[0]))]
        return [8] if self.target.options("--devices") else None


def of_verify() -> list[str]:
    """The options that `verify` has."""
    return [name for each in main.commands["verify"].params for name in each.opts]


def edited(text: str, function: str) -> str:
    """`text` with a comment, and a variable of the function that a device runs under another name."""
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and function in node.name:
            inside = list(ast.walk(node))
            fixed = {each.arg for each in inside if isinstance(each, ast.arg | ast.keyword)}
            fixed |= {each.attr for each in inside if isinstance(each, ast.Attribute)}
            names = [each for each in inside if isinstance(each, ast.Name)]
            for name in sorted({each.id for each in names if isinstance(each.ctx, ast.Store)} - fixed)[:1]:
                word, part = (
                    re.compile(rf"(?<!['\"])\b{name}\b(?!['\"])"),
                    slice(node.lineno, node.end_lineno),
                )
                lines[part] = [word.sub(f"{name}_of_mine", line) for line in lines[part]]
    return "".join(lines) + "# A comment of mine.\n"


def sweep() -> int:
    """Print a line for each function; exit 1 where a step did not say what it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[""], help="beginnings of names, such as pages/README")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "sweep")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    (folder / "forks").mkdir(parents=True, exist_ok=True)
    results = folder / "results.jsonl"
    known = dict(map(json.loads, results.read_text().splitlines())) if results.exists() else {}
    server = ForkServer(folder / "forks", Path(session.__file__).with_name("worker"))
    with mock.patch.object(session, "subprocess", server):
        for number, target in enumerate(targets()):
            if target.name in known or not target.name.startswith(tuple(asked.names)):
                continue
            other = OTHERS[number % len(OTHERS)]
            known[target.name] = Steps(target).all(Path(tempfile.mkdtemp(dir=folder)), other)
            with results.open("a") as stream:
                stream.write(json.dumps([target.name, known[target.name]]) + "\n")
            wrong = [f"\n{step}: {said}" for step, said in known[target.name].items() if said != "ok"]
            print(f"{target.name}: {''.join(wrong) or 'ok'}", flush=True)
    server.close()
    steps = [said for found in known.values() for said in found.values()]
    print(
        f"{len(known)} functions, {len(steps)} steps, {len(steps) - steps.count('ok')} not as they should be"
    )
    return int(steps.count("ok") < len(steps))


if __name__ == "__main__":
    sys.exit(sweep())
