"""What XLA made of the collectives is read from the compiled program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from jax_pmap.worker.compiled import read
from jax_pmap.worker.protocol import Collective

pytest_plugins = ["project"]

if TYPE_CHECKING:
    from project import Project

PROGRAM = """
  %x = (f32[], f32[3,2]{1,0}) all-reduce(%a, %b), channel_id=1, replica_groups={{0,1}}, to_apply=%add
  %y = bf16[24,5]{1,0} all-gather-start(%c), dimensions={0}
  %z = pred[] all-reduce(%d), to_apply=%or
  ROOT %w = f32[] add(%x, %z), metadata={op_name="all-reduce(like)"}
"""


def test_kinds_bytes_and_batches_are_read():
    assert read(PROGRAM, 24, {}) == (
        Collective("all-gather", (), count=1, bytes=240, batch=240, times=1, moved=240),
        Collective("all-reduce", (), count=2, bytes=29, batch=0, times=2, moved=29),
    )


#: A loop of three rounds in one of four, one whose rounds are not known, and what is called from two places.
LOOPS = """
%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %c = f32[] add(%a, %b)
}

%inner (x: f32[2]) -> f32[2] {
  %r1 = f32[2]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add
}

%outer (x: f32[2]) -> f32[2] {
  %w1 = f32[2] while(%x), condition=%go, body=%inner, backend_config={"known_trip_count":{"n":"3"}}
  %r2 = f32[2]{0} call(%w1), to_apply=%both
}

%both (x: f32[2]) -> f32[2] {
  %r3 = f32[6]{0} all-gather(%x), dimensions={0}
}

%open (x: f32[2]) -> f32[2] {
  %r4 = f32[2]{0} collective-permute(%x), source_target_pairs={{0,1}}
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %w2 = f32[2] while(%x), condition=%go, body=%outer, backend_config={"known_trip_count":{"n":"4"}}
  %w3 = f32[2] while(%x), condition=%go, body=%open
  %r5 = f32[2]{0} call(%w3), to_apply=%both
}
"""


def test_every_round_of_a_loop_counts():
    assert read(LOOPS, 24, {}) == (
        Collective("all-gather", (), count=1, bytes=24, batch=0, times=5, moved=5 * 24),
        Collective("all-reduce", (), count=1, bytes=8, batch=0, times=12, moved=12 * 8),
        Collective("collective-permute", (), 1, 8, 0, rounds=1, times=1, moved=8),
    )


MODULE = """
    import jax.numpy as jnp
    import numpy as np


    def centred(w, x):
        y = x @ w
        return jnp.mean((y - jnp.mean(y, 0)) ** 2, 0)


    def inputs(seed=0):
        random = np.random.default_rng(seed)
        return random.normal(size=(3, 5)).astype("float32"), random.normal(size=(24, 3)).astype("float32")
"""


RANKS = """
    import jax.numpy as jnp
    import numpy as np


    def ranks(scores):
        return jnp.argsort(jnp.argsort(scores))


    def inputs(seed=0):
        return (np.random.default_rng(seed).normal(size=24).astype("float32"),)
"""


def test_the_plan_is_held_against_the_compiled_program(project: Project):
    project.write("centre.py", MODULE)
    words = ("gen", "centre.py::centred", "--inputs", "centre.py::inputs", "--output-format", "json")
    evidence = json.loads(project.run(*words).stdout)["evidence"]
    assert evidence["collectives"] == [
        {"kind": "all-reduce", "count": 2, "bytes": 40, "axes": [], "rounds": 0, "times": 2, "moved": 40}
    ]
    assert evidence["replicas_identical"] is True
    assert evidence["notes"] == []


def test_what_the_compiler_gathers_is_named(project: Project):
    project.write("rank.py", RANKS)
    result = project.run("gen", "rank.py::ranks", "--inputs", "rank.py::inputs", "--backend", "jit")
    assert result.exit_code == 0, result.stderr
    assert "the compiler gathers the batch: 96 B on every device" in result.words
