"""A sample of `make mutation`: faults planted into emitted code, each of which the proof catches."""

import ast
from collections.abc import Set
from pathlib import Path

import pytest
from mutation.equivalent import why_equivalent
from mutation.faults import FAULTS, mutants
from mutation.hand import planted, verified, written
from mutation.sources import Source, sources, verdict, warm_worker

SOURCES = {source.name: source for source in sources()}


def golden(source: Source) -> str:
    """The code that the golden file holds for a source."""
    path = Path(__file__).parent / "cases" / f"{source.name}.py"
    return path.read_text(encoding="utf-8").partition("# output\n")[2]


def test_every_fault_is_planted_somewhere_and_gives_code():
    wanted, planted = {fault.name for fault in FAULTS}, set()
    for source in SOURCES.values():
        code = golden(source) if "-" not in source.name and planted != wanted else ""
        for mutant in mutants(code, planted, most=1) if code else ():
            assert ast.dump(ast.parse(mutant.code)) != ast.dump(ast.parse(code))
            planted.add(mutant.fault)
    assert planted == wanted


#: Faults of what is computed on each device. Those of how it is called are alike in all functions.
IN_BODIES = {
    "sync_dropped",
    "sync_dropped_for_one",
    "op_swapped",
    "synchronised_twice",
    "sync_late",
    "factor_of_count",
    "dropped_on_one_count",
    "a_thousandth_off",
    "first_device_only",
    "shares_reordered",
}


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("clip_by_global_norm", frozenset()),
        ("variance_from_two_means", {fault.name for fault in FAULTS} - IN_BODIES),
    ],
)
def test_faults_are_caught(name: str, without: Set[str], tmp_path: Path) -> None:
    with warm_worker(SOURCES[name], tmp_path.resolve()) as warm:
        assert warm.prove(warm.code).proved
        survived = []
        for mutant in mutants(warm.code, without, most=1):
            if verdict(warm, mutant.code).startswith("survived") and not why_equivalent(
                SOURCES[name], mutant, warm.observed.plan
            ):
                survived.append((mutant.fault, mutant.line))
    assert survived == []


def test_faults_in_code_written_by_hand_are_caught(tmp_path: Path) -> None:
    source = next(each for each in written() if each.name == "batch_norm")
    chosen = {"sync_dropped", "op_swapped", "sync_late"}
    with verified(source, tmp_path.resolve(), counts=(2,)) as warm:
        assert warm.prove(warm.code).proved
        verdicts = {m.fault: verdict(warm, m.code) for m in planted(source, most=1) if m.fault in chosen}
    assert verdicts.keys() == chosen
    assert not [fault for fault, says in verdicts.items() if says.startswith("survived")]


def test_a_fault_of_one_thousandth_in_float32_alone(tmp_path: Path) -> None:
    module = """
import jax.numpy as jnp
import numpy as np


def f(x):
    x = x.astype(jnp.float32)
    return {"mean": jnp.mean(x), "sum": jnp.sum(jnp.exp(x), 0), "half": jnp.mean(x.astype(jnp.bfloat16))}


def inputs(seed):
    return (np.random.default_rng(seed).normal(size=(48, 3)).astype(np.float32),)
"""
    source = Source("narrow", ("narrow.py::f", "--inputs", "narrow.py::inputs"), {"narrow.py": module})
    with warm_worker(source, tmp_path.resolve()) as warm:
        assert warm.prove(warm.code).proved
        found = [
            verdict(warm, mutant.code) for mutant in mutants(warm.code) if mutant.fault == "a_thousandth_off"
        ]
    # What is rounded to bfloat16 shows no thousandths; that must not excuse the others.
    assert "output `['mean']` differs" in found[0]
    assert "output `['sum']` differs" in found[1]
