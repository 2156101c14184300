"""Functions, each with the command that emits it: those of the examples, cases, pages and benchmarks."""

from __future__ import annotations

import functools
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from jax_pmap.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]
#: What says where an answer goes, and in which form; and comments.
ASIDE = re.compile(r" (-o|--report|--output-format|>) \S+| --in-place| --diff| +#.*")


@dataclass(frozen=True)
class Target:
    """A command `gen`, and the files that it needs."""

    name: str
    words: tuple[str, ...]
    files: dict[str, str] = field(repr=False)

    def options(self, *names: str) -> list[tuple[str, ...]]:
        """Those of its options that have one of the names, each with its value."""
        flags = {name for each in main.commands["gen"].params if is_flag(each) for name in each.opts}
        left = iter(self.words[1:])
        found = [(word,) if word in flags else (word, next(left)) for word in left]
        return [option for option in found if option[0] in names]


def is_flag(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and option.is_flag


def sources(folder: str) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in (REPOSITORY / folder).glob("*.py")}


def of_cases() -> Iterator[Target]:
    from test_cases import CASES, read_case

    for case in map(read_case, CASES):
        if case.expected.startswith("# output"):
            yield Target(f"cases/{case.name}", case.words[1:], {case.path.name: case.module})


def of_examples() -> Iterator[Target]:
    from test_examples import CASES

    for case in CASES:
        inputs = f"{case.target.partition('::')[0]}::{case.inputs}"
        yield Target(f"examples/{case.target}", (case.target, "--inputs", inputs), sources("examples"))


def of_benchmarks() -> Iterator[Target]:
    sys.path.append(str(REPOSITORY / "benchmarks"))
    import cases
    import coverage

    files = {"cases.py": sources("benchmarks")["cases.py"], "inputs.py": coverage.FOLDER}
    for name in cases.CASES:
        words = (f"cases.py::{name}", "--inputs", f"inputs.py::inputs_{name}")
        if name not in cases.REFUSED:
            yield Target(f"benchmarks/{name}", words, files)


def of_pages() -> Iterator[Target]:
    """Commands `gen` and `plan` that the pages show, but for those that run a program or are refused."""
    from test_readme import PAGES, blocks

    for page in PAGES:
        files, seen = sources("examples"), set[tuple[str, ...]]()
        for block in blocks(page):
            name = re.match(r"# (\w+\.py)\n", block.text)
            if block.language == "python" and name and not block.output_of:
                files = {**files, name[1]: block.text}
            lines = [line[2:] for line in block.text.splitlines() if "# exit" not in line]
            lines = lines if block.language == "console" else [block.output_of]
            for command in map(functools.partial(ASIDE.sub, ""), lines):
                if not re.match("jax-pmap (gen|plan) ", command) or "error[" in block.text:
                    continue
                words = tuple(shlex.split(command)[2:])
                if words not in seen and not {"--run", "--plan", "--target"} & {*words}:
                    seen.add(words)
                    yield Target(f"pages/{page.stem}/{len(seen)}", words, files)


def targets() -> list[Target]:
    """All of them, those of the four kinds in turns."""
    kinds = [list(kind()) for kind in (of_pages, of_examples, of_cases, of_benchmarks)]
    longest = max(map(len, kinds))
    return [kind[row] for row in range(longest) for kind in kinds if row < len(kind)]
