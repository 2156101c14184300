"""Random programs that hold the derivation by placements against running.

A program is text: lines that compute on a batch. Its parallel version has the same lines, with collectives
after some of them, rightly or wrongly, and now and then a changed number or operation. What is derived equal
must run equal; `Verdict.UNSOUND` is a bug of the derivation, and the program is shrunk and printed.

    python tests/derivation_fuzz.py --count 10000 --seed 0
"""

from __future__ import annotations

import argparse
import collections
import enum
import functools
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if "jax" not in sys.modules:
    os.environ["XLA_FLAGS"] = (
        "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
        "--xla_llvm_disable_expensive_passes=true"
    )
    os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "generator" / "jax_pmap"))

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from worker.placements.derive import derive
from worker.protocol import Shown

#: Numbers of devices that programs are run on.
COUNTS = (2, 3, 4)
CLASSES = 5
STEPS = 4
#: Inputs, and what each is: dtype, and its axes. B: rows, D: features, C: classes, T: steps.
INPUTS = {
    "x": "f:BD",
    "y": "f:B",
    "m": "f:B",
    "k": "i:B",
    "q": "f:BTD",
    "w": "f:D",
    "v": "f:DC",
    "e": "f:C",
    "s": "f:",
    "key": "k:",
}
ROWS = ("x", "y", "m", "k", "q")

# What lines are made of: result | text | operands | how it goes over rows.
# @ is any axes, R the rows: those of the device (B), or all, once they are gathered (G). The last column says
# what is needed of the other devices where rows are summed up; `=` keeps that of the operand (it is linear).
TEMPLATES = """
f:@ | jnp.tanh({0}) | f:@
f:@ | jnp.exp(-jnp.abs({0})) | f:@
f:@ | jnp.sin({0}) | f:@
f:@ | {0} ** 2 | f:@
f:@ | jnp.abs({0}) + 0.1 | f:@
f:@ | jnp.maximum({0}, 0.0) | f:@
f:@ | jnp.where({0} > 0, {0}, 0.1 * {0}) | f:@
f:@ | jnp.sqrt(jnp.abs({0}) + 1.0) | f:@
f:@ | jnp.log1p(jnp.abs({0})) | f:@
f:@ | jnp.clip({0}, -0.5, 0.5) | f:@
f:@ | jax.nn.sigmoid({0}) | f:@
f:@ | jnp.sign({0}) | f:@
f:@ | jnp.reciprocal(1.0 + {0} ** 2) | f:@
f:@ | jax.lax.stop_gradient({0}) | f:@ | =
f:@ | {0} * 0.5 | f:@ | =
f:@ | -{0} | f:@ | =
f:@ | 3.0 * {0} / 7.0 | f:@ | =
f:@ | {0} + 1.5 | f:@
f:@ | 1.0 - {0} | f:@
f:@ | 2.0 * {0} - 1.0 | f:@
f:@ | {0} - {0} | f:@ | =
f:@ | {0} * 0.0 | f:@ | =
f:@ | jnp.zeros_like({0}) | f:@
f:@ | jnp.full_like({0}, 0.25) | f:@
f:@ | {0}.astype(jnp.float32).astype(jnp.float64) | f:@ | =
f:@ | jnp.round({0} * 4.0) / 4.0 | f:@
f:@ | {0} + {1} | f:@ f:@ | =
f:@ | {0} - 0.5 * {1} | f:@ f:@ | =
f:@ | {0} * {1} | f:@ f:@
f:@ | {0} / (jnp.abs({1}) + 1.0) | f:@ f:@
f:@ | jnp.maximum({0}, {1}) | f:@ f:@
f:@ | jnp.minimum({0}, 2.0 * {1}) | f:@ f:@
f:@ | jnp.where({0} > {1}, {0}, {2}) | f:@ f:@ f:@
f:@ | jnp.hypot({0}, {1}) | f:@ f:@
f:@ | {0} * {1} | f:@ f:
f:@ | {0} + {1} | f:@ f:
f:@ | {0} - {1} | f:@ f:
f:@ | {0} / (1.0 + {1} ** 2) | f:@ f:
f:@ | {0} / {1} | f:@ f:
f:@ | jnp.where({1} > 0, {0}, -{0}) | f:@ f:
f:@ | jax.lax.cond({1} > 0.1, lambda a: a * 2.0, lambda a: a - 1.0, {0}) | f:@ f:
f:@ | jax.lax.cond({1} > 0.1, lambda a: a * 2.0, lambda a: a * 0.5, {0}) | f:@ f: | =
f:@ | jax.lax.fori_loop(0, 3, lambda i, a: jnp.tanh(a) * 0.9 + {0}, {0}) | f:@
f:@ | jax.lax.fori_loop(0, 3, lambda i, a: a * 0.5 + {0}, jnp.zeros_like({0})) | f:@ | =
f:@ | jax.lax.fori_loop(0, 3, lambda i, a: a + i * {0}, {0}) | f:@ | =
f:@ | jax.lax.while_loop(lambda a: jnp.sum(jnp.abs(a)) > 9.0, lambda a: a * 0.5, {0}) | f:@
f:@ | jax.lax.while_loop(lambda a: a[1] < 3, lambda a: (a[0] * 0.5 + {0}, a[1] + 1), ({0}, 0))[0] | f:@ | =
f:RD | {0} * {1}[:, None] | f:RD f:R
f:RD | {0} - {1}[:, None] | f:RD f:R
f:RD | {0} * {1} | f:RD f:D
f:RD | {0} + {1} | f:RD f:D
f:RD | {0} - {1} | f:RD f:D
f:RD | ({0} - {1}) / jnp.sqrt({2} ** 2 + 1e-5) | f:RD f:D f:D
f:RC | {0} + {1} | f:RC f:C
f:R | {0} @ {1} | f:RD f:D
f:RC | {0} @ {1} | f:RD f:DC
f:RD | {0} @ {1}.T | f:RC f:DC
f:D | {0} @ {1} | f:DC f:C
f:C | {0} @ {1} | f:D f:DC
f:D | {0}.T @ {1} | f:RD f:R | sum
f:D | jnp.einsum('i,ij->j', {1}, {0}) | f:RD f:R | sum
f:D | jnp.einsum('ij,i->j', {0}, {1}) / {n} | f:RD f:R | mean
f:DC | {0}.T @ {1} | f:RD f:RC | sum
f:DC | jnp.einsum('ij,ik->jk', {0}, {1}) / {n} | f:RD f:RC | mean
f: | jnp.vdot({0}, {1}) | f:R f:R | sum
f: | jnp.sum({0} @ {0}.T) | f:RD | ?
f: | jnp.trace({0} @ {0}.T) | f:RD | sum
f:R | ({0} @ {0}.T).sum(1) | f:RD
f: | jnp.sum(jnp.linalg.inv({0}.T @ {0} + jnp.eye({0}.shape[1]))) | f:RD | ?
f: | jnp.sum({0}) | f:R | sum
f: | jnp.mean({0}) | f:R | mean
f: | jnp.sum({0}) / {n} | f:R | mean
f: | jnp.sum({0} / {n}) | f:R | mean
f: | jnp.max({0}) | f:R | max
f: | jnp.min({0}) | f:R | min
f: | jnp.max(jnp.abs({0})) | f:R | max
f: | -jnp.max({0}) | f:R | min
f: | jnp.exp(jnp.max({0}) * 0.1) + 1.0 | f:R | max
f: | jnp.var({0}) | f:R | ?
f: | jnp.std({0}) | f:R | ?
f: | jnp.mean({0} ** 2) - jnp.mean({0}) ** 2 | f:R | ?
f: | jax.nn.logsumexp({0}) | f:R | ?
f: | jnp.linalg.norm({0}) | f:R | ?
f: | jnp.sum({0} ** 2) | f:R | sum
f: | jnp.prod({0}) | f:R | ?
f: | jnp.median({0}) | f:R | ?
f: | {0}[0] | f:R | ?
f: | jnp.sum({0} * m) / jnp.sum(m) | f:B | ?
f: | jnp.sum({0} * m) / jnp.maximum(jnp.sum(m), 1.0) | f:B | ?
f: | jnp.average({0}, weights=m) | f:B | ?
f: | jnp.mean({0}, where=m > 0.5) | f:B | ?
f: | jnp.sum({0} > 0) * 1.0 | f:R | sum
f: | jnp.mean({0} > {1}) | f:R f:R | mean
f: | jnp.any({0} > 1.0) * 1.0 | f:R | max
f: | jnp.all({0} > -1.0) * 1.0 | f:R | min
f: | jnp.argmax({0}) * 1.0 | f:R | ?
f: | jnp.ptp({0}) | f:R | ?
f: | {n} * 1.0 | f:R | sum
f: | jnp.sum(jnp.ones(({n},))) | f:R | sum
f: | jnp.sum(jnp.full(({n},), {1})) | f:R f: | sum
f: | jnp.sum(jnp.full(({n},), {1}) * {0}) | f:R f: | sum
f: | jnp.sum(jnp.arange({n}) * 1.0) | f:R | ?
f: | jnp.sum(jnp.arange({n}) * {0}) | f:R | ?
f: | jnp.sum({0}.reshape(2, -1).mean(1)) | f:R | ?
f: | jnp.mean({0}.reshape(2, -1).mean(1)) | f:R | mean
f: | jnp.mean({0}.reshape(-1, 3).max(1)) | f:R | ?
f: | jnp.sum({0}.reshape(-1, 2) ** 2) | f:R | sum
f: | jnp.max({0}.reshape(2, -1).sum(1)) | f:R | ?
f: | jnp.sum(jnp.max({0}.reshape(2, -1), 1)) | f:R | ?
f: | jnp.max({0}.reshape(2, -1)) | f:R | max
f: | jnp.sum(jnp.tanh({0}.reshape(2, -1)) * {1}.reshape(2, -1)) | f:R f:R | sum
f: | jnp.sum({0}.reshape(2, -1) * {1}.reshape(-1, 2).T) | f:R f:R | ?
f: | jnp.sum({0}.reshape(2, -1) * jnp.array([1.0, 2.0])[:, None]) | f:R | ?
f: | jnp.sum({0}.reshape(2, -1)[0]) | f:R | ?
f: | jnp.mean(jnp.sum(({0} * m).reshape(2, -1), 1) / jnp.sum(m.reshape(2, -1), 1)) | f:B | ?
f: | jax.lax.scan(lambda c, r: (c * 0.9 + r.sum(), None), 0.0, {0}.reshape(2, -1))[0] | f:R | ?
f: | jax.lax.scan(lambda c, r: (r.sum(), None), 0.0, {0}.reshape(2, -1))[0] | f:R | ?
f: | jax.lax.scan(lambda c, r: (c + r.sum(), c), 0.0, {0}.reshape(2, -1))[1].sum() | f:R | ?
f: | jax.lax.scan(lambda c, r: (c + 1.0, r.sum() * c), 1.0, {0}.reshape(2, -1))[1].sum() | f:R | ?
f: | jax.lax.scan(lambda c, r: (c + jnp.sum(jnp.sin(r) * {1}), None), 0.0, \
{0}.reshape(2, -1))[0] | f:R f: | sum
f: | jax.lax.scan(lambda c, r: (c + jnp.sum(jnp.outer(*r)), None), 0.0, \
({0}.reshape(2, -1), {1}.reshape(2, -1)))[0] | f:R f:R | ?
f: | jax.lax.scan(lambda c, r: (c + r[0] @ r[1], None), 0.0, \
({0}.reshape(2, -1), {1}.reshape(2, -1)))[0] | f:R f:R | sum
f: | jax.lax.scan(lambda c, r: (c + jax.lax.cond(c > 0, lambda: r.sum(), lambda: 0.0), None), 0.0, \
{0}.reshape(2, -1))[0] | f:R | ?
f: | jax.lax.scan(lambda c, r: (c + jax.lax.scan(lambda d, t: (d + (t * r[0]).sum(), None), 0.0, \
r[1].reshape(2, -1))[0], None), 0.0, (jnp.ones(2), {0}.reshape(2, -1)))[0] | f:R | sum
f: | jnp.mean(jax.vmap(lambda r, t: r @ t)({0}.reshape(2, -1), {1}.reshape(2, -1))) | f:R f:R | sum
f:R | jnp.tanh({0}.reshape(2, -1)).reshape(-1) | f:R
f:R | jax.lax.map(lambda r: jnp.tanh(r) * 2.0 + {1}, {0}) | f:R f:
f:R | jax.lax.map(lambda r: jax.lax.cond(r > 0, jnp.sin, jnp.cos, r), {0}) | f:R
f:R | jax.lax.scan(lambda c, r: (c + 1.0, r * c), 1.0, {0})[1] | f:R
f: | jax.lax.scan(lambda c, r: (c + jnp.sin(r), r), 0.0, {0})[0] | f:R | sum
f: | jax.lax.scan(lambda c, r: (c + 1.0, r), 0.0, {0})[0] | f:R | sum
f: | jax.lax.scan(lambda c, r: (c * 0.5 + r, r), 0.0, {0})[0] | f:R | ?
f: | jax.lax.scan(lambda c, r: (c + r, r), {1}, {0})[0] | f:R f: | ?
f: | jnp.mean(jax.lax.map(lambda r: r[0] @ r[1], ({0}, {1}))) | f:RD f:RD | mean
f:R | jnp.repeat({0}[::2], 2) | f:R
f: | jnp.mean({0}[::2] * {1}[1::2]) | f:R f:R | mean
f:R | jnp.stack([{0}[0::2], {0}[1::2]], 1).reshape(-1) | f:R
f:R | jax.lax.map(lambda r: jnp.tanh(r) * 2.0, {0}.reshape(2, -1)).reshape(-1) | f:R
f:R | ({0}.reshape(2, -1) * {1}.reshape(-1, 2).T).reshape(-1) | f:R f:R
f:R | jax.lax.scan(lambda c, r: (r, r * c), jnp.ones({n} // 2), {0}.reshape(2, -1))[1].reshape(-1) | f:R
f:R | {0}.reshape(2, -1).cumsum(0).reshape(-1) | f:R
f:D | jnp.sum({0}, 0) | f:RD | sum
f:D | jnp.mean({0}, 0) | f:RD | mean
f:D | {0}.sum(0) / {n} | f:RD | mean
f:D | jnp.max({0}, axis=0) | f:RD | max
f:D | jnp.min({0}, axis=0) | f:RD | min
f:D | jnp.var({0}, axis=0) | f:RD | ?
f:D | jnp.std({0}, axis=0) | f:RD | ?
f:D | jnp.linalg.norm({0}, axis=0) | f:RD | ?
f:D | jax.nn.logsumexp({0}, axis=0) | f:RD | ?
f:D | jnp.sum({0} * m[:, None], 0) / jnp.sum(m) | f:BD | ?
f:D | jnp.cumsum({0}, axis=0)[-1] | f:RD | ?
f:D | {0}[0] | f:RD | ?
f:D | jax.lax.scan(lambda c, r: (c + r, None), jnp.zeros_like({0}[0]), {0})[0] | f:RD | ?
f:D | jax.lax.scan(lambda c, r: (c + r.sum(0), None), jnp.zeros_like({0}[0]), \
{0}.reshape(2, -1, {0}.shape[1]))[0] | f:RD | sum
f:D | jax.lax.scan(lambda c, r: (c + r.mean(0) / 2.0, None), jnp.zeros_like({0}[0]), \
{0}.reshape(2, -1, {0}.shape[1]))[0] | f:RD | mean
f:D | jax.lax.scan(lambda c, r: (c + jnp.sum({0} * r, 0), None), jnp.zeros_like({0}[0]), jnp.ones(3))[0] \
| f:RD | sum
f:D | jax.lax.scan(lambda c, r: (c * 0.5 + jnp.mean({0}, 0), None), {1}, None, length=2)[0] | f:RD f:D | ?
f:D | jax.lax.scan(lambda c, r: (c * 0.5 + jnp.mean({0} * c, 0), c), {1}, None, length=2)[1].sum(0) \
| f:RD f:D | ?
f: | jnp.mean({0}) | f:RD | mean
f: | jnp.sum({0}) | f:RD | sum
f: | jnp.max({0}) | f:RD | max
f: | jnp.sum({0} ** 2) / {n} | f:RD | mean
f: | jnp.linalg.norm({0}) | f:RD | ?
f: | jnp.mean({0}.sum(1)) | f:RD | mean
f: | jnp.mean(jnp.max({0}, 1)) | f:RD | mean
f: | jnp.sum({0}.reshape(-1)) | f:RD | sum
f: | jnp.sum({0}.T @ {0}) | f:RD | sum
f:R | {0}.sum(1) | f:RD
f:R | {0}.mean(-1) | f:RD
f:R | {0}.max(1) | f:RD
f:R | {0}.var(1) | f:RD
f:R | jax.nn.logsumexp({0}, axis=1) | f:RD
f:R | jnp.linalg.norm({0}, axis=1) | f:RD
f:R | {0}[:, 0] | f:RD
f:R | {0}[:, ::2].sum(1) | f:RD
f:R | {0}.T[1] | f:RD
f:R | jnp.argmax({0}, 1) * 1.0 | f:RD
f:R | jnp.sort({0}, axis=1)[:, 1] | f:RD
f:R | jnp.concatenate([{0}, {0} ** 2], 1).sum(1) | f:RD
f:R | jnp.concatenate([{0}, {1}[:, None]], 1).max(1) | f:RD f:R
f:R | jnp.stack([{0}, {1}], -1).max(-1) | f:R f:R
f:R | jnp.stack([{0}, {1}]).mean(0) | f:R f:R
f:R | jax.vmap(lambda r: jnp.dot(r, r) - r[0])({0}) | f:RD
f:R | jax.vmap(lambda r, c: jnp.where(c > 0, r.max(), c))({0}, {1}) | f:RD f:R
f:R | jax.lax.scan(lambda c, t: (jnp.tanh(c * 0.5 + t), c), jnp.zeros({0}.shape[0]), {0}.T)[0] | f:RD
f:R | jax.lax.scan(lambda c, t: (c * 0.5 + t, c), jnp.zeros_like({0}[:, 0]), {0}.T)[1].sum(0) | f:RD
f:R | jax.lax.scan(lambda c, t: (c * 0.5 + t, c), jnp.ones({n}), {0}.T, reverse=True)[1].sum(0) | f:RD
f:R | jax.lax.scan(lambda c, t: (c + t, c), 0.0, {0})[1] | f:R
f:R | {0}.reshape(-1, 3).sum(1).repeat(3) | f:R
f: | jnp.mean(jnp.concatenate([{0}, {1}])) | f:R f:R | mean
f:R | jnp.tanh(jnp.concatenate([{0}, {1}]))[{n} :] | f:R f:R
f:R | jnp.split(jnp.concatenate([{0}, {1}]) * (jnp.ones(2 * {n}) + 1.0), 2)[0] | f:R f:R
f:R | jnp.concatenate([{0}, {1}]).reshape(2, -1)[1] | f:R f:R
f:R | jnp.concatenate([{0}, {1}])[::2] | f:R f:R
f:R | jnp.concatenate([{0}, {1}])[{n} // 2 : {n} // 2 + {n}] | f:R f:R
f:R | jnp.concatenate([{0}, {1}]).reshape(-1, 2)[:, 1] | f:R f:R
f:R | jnp.pad({0} ** 2, (0, {n}))[: {n}] + jnp.pad({1}, (0, {n}))[{n} :] | f:R f:R
f:R | (jnp.pad({0}, ({n}, 0)) * jnp.concatenate([{1}, {0}]))[{n} :] | f:R f:R
f:R | {0}.reshape(3, -1).T.reshape(-1) | f:R
f:R | {0}[::-1] | f:R
f:R | jnp.roll({0}, 1) | f:R
f:R | jnp.sort({0}) | f:R
f:R | jnp.cumsum({0}) | f:R
f:R | jax.nn.softmax({0}) | f:R
f:R | {0} - {0}.mean() | f:R
f:R | {0} - {0}.max() | f:R
f:R | {0} * {n} | f:R
f:R | {0} / {n} | f:R
f:R | jnp.arange({n}) + {0} | f:R
f:R | jnp.ones({n}) * {0} | f:R
f:R | jnp.full({n}, {1}) | f:R f:
f:R | jnp.broadcast_to({1}, {0}.shape) | f:R f:
f:RD | jnp.broadcast_to({1}, {0}.shape) | f:RD f:D
f:RD | jnp.tile({1}, ({n}, 1)) | f:RD f:D
f:RD | jnp.outer({0}, {1}) | f:R f:D
f:RD | {0}[:, ::-1] | f:RD
f:RD | jnp.cumsum({0}, axis=1) | f:RD
f:RD | jnp.sort({0}, axis=1) | f:RD
f:RD | jax.nn.softmax({0}, axis=1) | f:RD
f:RD | jax.nn.softmax({0}, axis=0) | f:RD
f:RD | jax.nn.log_softmax({0}) | f:RD
f:RD | {0}.T.T | f:RD
f:RD | {0}.reshape(-1).reshape({0}.shape) | f:RD
f:RD | {0}.reshape({0}.shape[1], -1).T | f:RD
f:RD | {0}.T.reshape({0}.shape) | f:RD
f:RD | jnp.roll({0}, 1, axis=1) | f:RD
f:RD | ({0} - {0}.mean(1, keepdims=True)) / jnp.sqrt({0}.var(1, keepdims=True) + 1e-5) | f:RD
f:RD | ({0} - {0}.mean(0)) / jnp.sqrt({0}.var(0) + 1e-5) | f:RD
f:RD | {0} * (jnp.arange({0}.shape[1]) + 1.0) | f:RD
f:RD | {0} * (jnp.arange({n}) + 1.0)[:, None] | f:RD
f:RD | jnp.pad({0}, ((0, 0), (1, 0)))[:, :-1] | f:RD
f:RD | jnp.pad({0}, ((1, 0), (0, 0)))[:-1] | f:RD
f:RD | {0}.at[:, 0].set(0.0) | f:RD
f:RD | {0}.at[:, 0].add(1.0) | f:RD
f:RD | {0}.at[0].set(0.0) | f:RD
f:RD | {0}.mean(1) | f:RTD
f:RD | {0}.max(1) | f:RTD
f:RD | {0}[:, -1] | f:RTD
f:RD | jnp.einsum('btd,bt->bd', {0}, jax.nn.softmax({0}.sum(2), 1)) | f:RTD
f:RD | jnp.einsum('btd,bd->bt', {0}, {1}).mean(1)[:, None] * {1} | f:RTD f:RD
f:RD | jax.lax.scan(lambda c, t: (jnp.tanh(c + t), c), jnp.zeros_like({0}[:, 0]), {0}.swapaxes(0, 1))[0] \
| f:RTD
f:RTD | {0} * {1} | f:RTD f:D
f:RTD | {0} - {1}[:, None] | f:RTD f:RD
f:RTD | {0}[:, ::-1] | f:RTD
f:RTD | jnp.einsum('btd,bsd->bts', {0}, {0}) @ {0} | f:RTD
f:RTD | {0}.reshape(-1, {0}.shape[2]).reshape({0}.shape) | f:RTD
f:RTD | {0}.swapaxes(0, 1).reshape({0}.shape) | f:RTD
f:RTD | jnp.tanh({0}.swapaxes(0, 1).reshape(-1, {0}.shape[2]))\
.reshape({0}.shape[1], -1, {0}.shape[2]).swapaxes(0, 1) | f:RTD
f: | jnp.mean({0}.swapaxes(0, 1).reshape(-1, {0}.shape[2])) | f:RTD | mean
f: | jnp.mean({0}) | f:RTD | mean
f:D | {0}.reshape(-1, {0}.shape[2]).sum(0) | f:RTD | sum
f:D | {0}.swapaxes(0, 1).reshape(-1, {0}.shape[2]).max(0) | f:RTD | max
f:D | jnp.mean({0}, axis=(0, 1)) | f:RTD | mean
f:RC | jax.nn.one_hot({0}, 5) | i:R
f:RC | {0} * {1} | f:RC f:RC
f:RC | jax.nn.log_softmax({0}) | f:RC
f:RC | {0} * {1}[:, None] | f:RC f:R
f:R | {1}[{0}] | i:R f:C
f:R | {1}[{0}] | i:R f:R
f:R | {1}[jnp.arange({n}), {0}] | i:R f:RC
f:R | jnp.take_along_axis({1}, {0}[:, None], 1)[:, 0] | i:R f:RC
f:R | -jnp.take_along_axis(jax.nn.log_softmax({1}), {0}[:, None], axis=-1).squeeze(-1) | i:R f:RC
f:R | ({0} == 2) * 1.0 | i:R
f:R | jnp.where({0} < 2, {1}, 0.0) | i:R f:R
f:R | {0} * 0.5 | i:R
f:R | (jnp.argmax({1}, -1) == {0}).astype(jnp.float64) | i:R f:RC
f:C | jnp.zeros(5).at[{0}].add({1}) | i:R f:R | sum
f:C | jax.ops.segment_sum({1}, {0}, num_segments=5) | i:R f:R | sum
f:C | jax.ops.segment_max({1}, {0}, num_segments=5) | i:R f:R | max
f:C | jnp.bincount({0}, length=5) * 1.0 | i:R | sum
f:C | jnp.bincount({0}, length=5) / {n} | i:R | mean
f:C | jnp.sum(jax.nn.one_hot({0}, 5) * {1}[:, None], 0) | i:R f:R | sum
f:C | jax.ops.segment_sum({1}, {0}, num_segments=5) / jnp.maximum(jnp.bincount({0}, length=5), 1) \
| i:R f:R | ?
f:C | {0}.mean(0) | f:RC | mean
f:C | {0}.sum(0) | f:RC | sum
f:C | {1}.at[{0}].add({2}) | i:R f:C f:R | ?
f: | jnp.mean({0} == jnp.argmax({1}, 1)) | i:R f:RC | mean
f: | jnp.sum({0}) * 1.0 | i:R | sum
f: | jnp.max({0}) * 1.0 | i:R | max
f: | jnp.sum({0}) / 3 | i:R | sum
f: | (jnp.sum({0}) // 3) * 1.0 | i:R | ?
f: | jnp.sum({0}).astype(jnp.float32).astype(jnp.float64) | i:R | sum
f: | jnp.mean(-jnp.sum(jax.nn.one_hot({0}, 5) * jax.nn.log_softmax({1}), 1)) | i:R f:RC | mean
i:R | ({0} + 1) % 5 | i:R
i:R | 4 - {0} | i:R
i:R | jnp.argmax({0}, 1) % 5 | f:RC
i:R | ({0} > 0).astype(int) | f:R
i:R | jnp.maximum({0}, {1}) | i:R i:R
f: | jnp.sum({0}) | f:D | =
f: | jnp.mean({0}) | f:D | =
f: | jnp.max({0}) | f:D
f: | jnp.linalg.norm({0}) | f:D
f: | jnp.sum({0} ** 2) | f:D
f: | {0} @ {1} | f:D f:D
f: | {0}[0] | f:D | =
f: | jnp.sum({0}) | f:C | =
f: | {0}.max() | f:C
f: | {0}.mean() | f:DC | =
f:D | jnp.cumsum({0}) | f:D | =
f:D | {0}[::-1] | f:D | =
f:D | {0}.at[0].set(0.0) | f:D
f:D | {0} * jnp.minimum(1.0, 1.0 / (jnp.linalg.norm({0}) + 1e-6)) | f:D
f:D | {0} - 0.1 * {1} | f:D f:D
f:D | 0.9 * {0} + 0.1 * {1} | f:D f:D
f:D | {0} / (jnp.sqrt({1} ** 2) + 1e-3) | f:D f:D
f:D | {0}.sum(1) | f:DC | =
f:DC | jnp.outer({0}, {1}) | f:D f:C
f:DC | {0} - 0.05 * {1} | f:DC f:DC
f:R | jax.random.normal({0}, ({n},)) | k: f:R
f:R | {1} * jax.random.bernoulli({0}, 0.7, {1}.shape) / 0.7 | k: f:R
f:RD | {1} + 0.1 * jax.random.normal({0}, {1}.shape) | k: f:RD
f:D | {1} + 0.1 * jax.random.normal({0}, {1}.shape) | k: f:D
f: | jax.random.uniform({0}) | k:
f:R | jax.vmap(lambda a: jax.random.normal(a))(jax.random.split({0}, {n})) | k: f:R
k: | jax.random.fold_in({0}, 3) | k:
k: | jax.random.split({0})[1] | k:
"""

#: Collectives by what they set right, and what they make of the axes.
RIGHT = {
    "sum": "jax.lax.psum({0}, 'i')",
    "mean": "jax.lax.pmean({0}, 'i')",
    "max": "jax.lax.pmax({0}, 'i')",
    "min": "jax.lax.pmin({0}, 'i')",
    "rows": "jax.lax.all_gather({0}, 'i', axis=0, tiled=True)",
    "key": "jax.random.fold_in({0}, jax.lax.axis_index('i'))",
}
WRONG = (
    *list(RIGHT.values())[:4],
    "jax.lax.psum({0}, 'i') / jax.lax.axis_size('i')",
    "jax.lax.psum({0} / {b}, 'i')",
    "jax.lax.psum({0} * {b}, 'i') / {whole}",
    "jax.lax.psum({0}, 'i') / {whole}",
    "jax.lax.psum(jax.lax.psum({0}, 'i'), 'i')",
    "jax.lax.pmean(jax.lax.psum({0}, 'i'), 'i')",
    "jax.lax.pmean({0}, 'i') * jax.lax.axis_size('i')",
    "jax.lax.all_gather({0}, 'i').mean(0)",
    "jax.lax.all_gather({0}, 'i').sum(0)",
    "jax.lax.all_gather({0}, 'i').max(0)",
    "jax.lax.all_gather({0}, 'i')[0]",
    "jax.lax.all_gather({0}, 'i').mean(-1)",
    "jax.lax.ppermute({0}, 'i', [(0, 1), (1, 0)])",
    "jnp.where(jax.lax.axis_index('i') == 0, {0}, 0)",
    "jax.lax.psum(jnp.where(jax.lax.axis_index('i') == 0, {0}, 0), 'i')",
    "{0} + jax.lax.axis_index('i')",
    "{0} * (jax.lax.axis_index('i') * 0 + 1)",
    "{0} * jax.lax.axis_size('i')",
    "{0} / jax.lax.axis_size('i')",
    "{0} * {b} / {whole}",
    "jnp.sqrt(jax.lax.psum({0} ** 2, 'i'))",
    "jax.lax.psum_scatter({0}, 'i', tiled=True)",
    "jax.lax.all_gather(jax.lax.psum_scatter({0}, 'i', tiled=True), 'i', tiled=True)",
    "jax.lax.all_gather({0}, 'i', axis=0, tiled=True)",
    "jax.lax.all_gather({0}, 'i', axis=-1, tiled=True)",
    "jax.lax.all_to_all({0}, 'i', 0, 0, tiled=True)",
    "jax.lax.all_to_all({0}, 'i', 0, 1, tiled=True)",
)

#: Changes of a line in the parallel program.
CHANGES = (
    (r"\b0\.5\b", "0.25"),
    (r"\b1\.0\b", "2.0"),
    (r"\b2\b", "3"),
    (r"\+", "-"),
    (r" - ", " + "),
    (r" \* ", " + "),
    (r"max", "min"),
    (r"sum", "mean"),
    (r"mean", "sum"),
    (r" > ", " < "),
    (r" > ", " >= "),
    (r"\b0\b", "1"),
    (r"\b1\b", "0"),
    (r"\.T\b", ""),
    (r"tanh", "sin"),
    (r"jnp\.abs", ""),
    (r"\{n\}", "{whole}"),
    (r"\{n\}", "({n} - 1)"),
    (r"\{n\}", "({n} + 1)"),
    (r"zeros", "ones"),
    (r"\{0\}", "{1}"),
    (r"\{1\}", "{0}"),
    (r"'i,ij->j'", "'i,ij->j' if True else ''"),
    (r"-1", "0"),
    (r"::-1", "::1"),
    (r"reverse=True", "reverse=False"),
    (r"length=2", "length=3"),
    (r"axis=0", "axis=1"),
)


@dataclass(frozen=True)
class Template:
    """One line of the table."""

    result: str
    text: str
    operands: tuple[str, ...]
    way: str


def _table() -> list[Template]:
    rows = []
    for line in TEMPLATES.replace("\\\n", "").strip().splitlines():
        parts = [part.strip() for part in line.split(" | ")]
        rows.append(Template(parts[0], parts[1], tuple(parts[2].split()), parts[3] if len(parts) > 3 else ""))
    return rows


TABLE = _table()


@dataclass(frozen=True)
class Line:
    """An assignment, with what stands in its place in the parallel program."""

    name: str
    text: str
    #: The text in the parallel program, and the collective after it; empty where there is none.
    changed: str = ""
    collective: str = ""
    #: Lines of a loss that this one differentiates: its result, and what the gradient is taken for.
    inner: tuple[Line, ...] = ()
    loss: str = ""
    weight: str = ""

    def shown(self, parallel: bool, indent: str = "    ") -> Iterator[str]:
        """Lines of source."""
        if self.inner:
            yield f"{indent}def loss_{self.name.split(', ')[-1]}({self.weight}):"
            for line in self.inner:
                yield from line.shown(parallel, indent + "    ")
            yield f"{indent}    return {self.loss}"
        yield f"{indent}{self.name} = {(parallel and self.changed) or self.text}"
        if parallel and self.collective:
            yield f"{indent}{self.name.split(', ')[-1]} = {self.collective}"


@dataclass(frozen=True)
class Program:
    """A reference and its parallel version."""

    lines: tuple[Line, ...]
    #: Names of results, and whether each is divided by rows (`"i"`) or the same on all devices (`""`).
    results: tuple[tuple[str, str], ...]
    batch: int
    features: int
    counts: tuple[int, int]
    #: `"pmap"`, or the `check_vma` of `shard_map`; `"plain"` is mapped over nothing.
    form: str
    #: Inputs that are divided by rows; parameters among them are a fault.
    divided: tuple[str, ...] = ROWS
    dtype: str = "float64"

    def source(self, parallel: bool) -> str:
        """The function as text."""
        body = [text for line in self.lines for text in line.shown(parallel)]
        results = ", ".join(name for name, _ in self.results)
        return "\n".join([f"def program({', '.join(INPUTS)}):", *body, f"    return ({results},)\n"])

    def function(self, parallel: bool) -> Callable[..., Any]:
        """The function, not mapped."""
        names: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np}
        exec(_compiled(self.source(parallel)), names)
        made: Callable[..., Any] = names["program"]
        return made

    def mapped(self, devices: int) -> Callable[..., Any]:
        """The parallel program on so many devices, as its caller calls it."""
        inner = self.function(True)
        if self.form == "plain":
            return inner
        chosen = jax.devices()[:devices]
        if self.form != "pmap":
            specs = tuple(P("i") if name in self.divided else P() for name in INPUTS)
            out = tuple(P("i") if how else P() for _, how in self.results)
            return jax.shard_map(
                inner,
                mesh=Mesh(np.array(chosen), ("i",)),
                in_specs=specs,
                out_specs=out,
                check_vma=self.form == "True",
            )
        axes = tuple(0 if name in self.divided else None for name in INPUTS)
        out_axes = tuple(0 if how else None for _, how in self.results)
        fast = jax.pmap(inner, axis_name="i", in_axes=axes, out_axes=out_axes, devices=chosen)

        def drop(*arguments: Any) -> Any:
            parts = [
                a.reshape(devices, a.shape[0] // devices, *a.shape[1:]) if axis == 0 else a
                for a, axis in zip(arguments, axes, strict=True)
            ]
            found = fast(*parts)
            return tuple(
                r.reshape(-1, *r.shape[2:]) if axis == 0 else r
                for r, axis in zip(found, out_axes, strict=True)
            )

        return drop

    def arguments(self, kind: int) -> tuple[Any, ...]:
        """Inputs: of kind 0 like drawn examples, of kind 1 unlike on every device, with ties and zeros."""
        rows, width = self.batch, self.features
        draw = np.random.default_rng(kind)
        sizes = {"B": rows, "D": width, "C": CLASSES, "T": STEPS}
        made: dict[str, Any] = {}
        for name, tag in INPUTS.items():
            shape = tuple(sizes[axis] for axis in tag[2:])
            if tag[0] == "k":
                made[name] = jax.random.key(7 + kind)
            elif tag[0] == "i":
                made[name] = (
                    draw.integers(0, CLASSES, shape)
                    if kind == 0
                    else np.sort(draw.integers(0, CLASSES, shape))
                )
            else:
                value = draw.normal(size=shape)
                if kind == 1 and name in ROWS:
                    rising = np.linspace(0.2, 3.0, rows).reshape(-1, *[1] * (len(shape) - 1))
                    value = np.round(value * rising * 4) / 4 - rising
                    if name == "y":
                        value += 20.0
                if name == "m":
                    value = (
                        np.abs(value) * (np.arange(rows) % 5 != 0)
                        if kind == 0
                        else 1.0 * (np.arange(rows) > rows // 3)
                    )
                made[name] = np.asarray(value, self.dtype)
        return tuple(made.values())

    def repro(self) -> str:
        """Source that shows what differs."""
        return (
            f"# {self.form}, counts {self.counts}, B = {self.batch}, D = {self.features}, {self.dtype}, "
            f"divided {self.divided}, out {[how for _, how in self.results]}\n"
            f"# reference\n{self.source(False)}# parallel\n{self.source(True)}"
        )


@functools.lru_cache(64)
def _compiled(source: str) -> Any:
    return compile(source, "<program>", "exec")


# --- generating -------------------------------------------------------------------------------


@dataclass
class _Maker:
    """Draws one program."""

    random: random.Random
    batch: int
    #: Shares of lines that get a wrong collective, and that are changed.
    faults: float
    changes: float
    #: Whether it is mapped over devices at all.
    mapped: bool = True
    used: int = 0
    #: Name, kind, and what its value on a device is, as far as is guessed: W(hole), S(hared), or what is due.
    known: list[tuple[str, str, str]] = field(default_factory=list)

    def name(self) -> str:
        """A new name."""
        self.used += 1
        return f"a{self.used}"

    def line(self) -> Line | None:
        """A line by a template that what is known fits."""
        template = self.random.choice(TABLE)
        letter = self.random.choice("BBBG") if any(v[1][2:3] == "G" for v in self.known) else "B"
        bound: str | None = None
        chosen: list[tuple[str, str, str]] = []
        for operand in template.operands:
            wanted = operand.replace("R", letter)
            if wanted.endswith("@"):
                fits = [
                    v for v in self.known if v[1][0] == wanted[0] and (bound is None or v[1][2:] == bound)
                ]
            else:
                fits = [v for v in self.known if v[1] == wanted]
            if not fits:
                return None
            # What was made last is what matters.
            pick = fits[-1 - min(int(self.random.expovariate(0.45)), len(fits) - 1)]
            if wanted.endswith("@"):
                bound = pick[1][2:]
            chosen.append(pick)
        kind = template.result.replace("R", letter).replace("@", bound or "")
        guess = self.guess(template, kind, [v[2] for v in chosen])
        changed = template.text
        if self.random.random() < self.changes:
            old, new = self.random.choice(CHANGES)
            spots = list(re.finditer(old, changed))
            if spots:
                spot = self.random.choice(spots)
                changed = changed[: spot.start()] + new + changed[spot.end() :]
                if "{1}" in changed and len(chosen) < 2:
                    changed = template.text
        count = self.random.choice(["x.shape[0]", "x.shape[0]", "y.size", str(self.batch)])
        if letter == "G":
            count = str(self.batch)

        def filled(text: str) -> str:
            for i, value in enumerate(chosen):
                text = text.replace(f"{{{i}}}", value[0])
            return text.replace("{n}", count).replace("{whole}", str(self.batch))

        name = self.name()
        if count == str(self.batch) and guess == "mean" and letter == "B" and "{n}" in template.text:
            guess = "sum"
        collective, kind, guess = self.collective(name, kind, guess)
        self.known.append((name, kind, guess))
        text = filled(template.text)
        after = filled(changed)
        return Line(name, text, "" if after == text else after, collective)

    @staticmethod
    def guess(template: Template, kind: str, guesses: Sequence[str]) -> str:
        """What the result of a template is on a device."""
        if "B" in kind:
            return "S"
        others = {g for g in guesses if g not in ("W", "S")}
        if "S" in guesses:
            return template.way if template.way and not others else "?"
        if others:
            return others.pop() if template.way == "=" and len(set(guesses)) == 1 else "?"
        return "W"

    def collective(self, name: str, kind: str, guess: str) -> tuple[str, str, str]:
        """A collective for a value, right or wrong, and what the value is then."""
        roll = self.random.random()
        if not self.mapped:
            return "", kind, guess
        if kind == "k:":
            return (RIGHT["key"].replace("{0}", name), kind, "W") if roll < 0.5 else ("", kind, guess)
        if guess in RIGHT and roll > self.faults * 1.6:
            return RIGHT[guess].replace("{0}", name), kind, "W"
        wrong = {"S": 0.35, "W": 0.3}.get(guess, 1.0) * self.faults
        if guess == "S" and kind[2] == "B" and 0.5 < roll < 0.56:
            return RIGHT["rows"].replace("{0}", name), kind.replace("B", "G"), "W"
        if roll >= wrong:
            return "", kind, guess
        text = self.random.choice(WRONG).replace("{0}", name)
        return (
            text.replace("{b}", "x.shape[0]").replace("{whole}", str(self.batch)),
            kind,
            "W" if "B" not in kind else "S",
        )

    def gradient(self) -> Line | None:
        """A line that differentiates a loss of some lines."""
        weights = [v for v in self.known if v[1] in ("f:D", "f:DC", "f:C", "f:") and v[2] == "W"]
        weight = self.random.choice(weights)
        outer, self.known = self.known, [*self.known, weight]
        inner: list[Line] = []
        for _ in range(60):
            line = self.line()
            if line is not None:
                inner.append(line)
            if len(inner) > 7:
                break
            if inner and self.known[-1][1] == "f:" and len(inner) > 1 and self.random.random() < 0.8:
                break
        loss = next((v for v in reversed(self.known[len(outer) + 1 :]) if v[1] == "f:"), None)
        self.known = outer
        if loss is None:
            return None
        name = self.name()
        due = loss[2] if loss[2] in ("sum", "mean") else "W" if loss[2] == "W" else "?"
        if due == "W" and any(line.collective for line in inner):
            due = self.random.choice(["W", "sum", "mean"])
        collective, _, guess = self.collective(name, weight[1], due)
        self.known.append((name, weight[1], guess))
        if self.random.random() < 0.5:
            names, text = name, f"jax.grad(loss_{name})({weight[0]})"
        else:
            names, text = f"l{name}, {name}", f"jax.value_and_grad(loss_{name})({weight[0]})"
        return Line(names, text, "", collective, tuple(inner), loss[0], weight[0])


def programs(seed: int) -> Program:
    """The program of a seed."""
    draw = random.Random(seed)
    batch = draw.choice([12, 24, 24, 24, 24])
    features = draw.choice([3, 4, 6, 6, 12])
    form = draw.choices(["False", "True", "pmap", "plain"], [55, 25, 12, 8])[0]
    faults = draw.choice([0.0, 0.0, 0.1, 0.25, 0.5])
    changes = draw.choice([0.0, 0.0, 0.05, 0.2])
    if form == "plain":
        faults, changes = 0.0, 0.3
    maker = _Maker(draw, batch, faults, changes, form != "plain")
    for name, kind in INPUTS.items():
        maker.known.append((name, kind, "S" if name in ROWS else "W"))
    lines: list[Line] = []
    for _ in range(draw.randint(4, 60)):
        line = maker.gradient() if draw.random() < 0.08 else maker.line()
        if line is not None:
            lines.append(line)
        if len(lines) > 14:
            break
    made = [v for v in maker.known[len(INPUTS) :] if v[1] != "k:"] or [("x", "f:BD", "S")]
    bare = Program(tuple(lines), (), batch, features, (2, 4), form)
    results: dict[str, str] = {}
    for _ in range(draw.randint(1, 3)):
        good = [v for v in made if v[2] in ("W", "S")] if draw.random() < 0.8 else made
        good = sorted(good or made, key=lambda v: len(trimmed(replace(bare, results=((v[0], ""),))).lines))
        value = draw.choice(good[-4:])
        how = "i" if value[2] == "S" else ""
        if draw.random() < 0.15 * faults:
            how = "" if how else "i"
        if how and value[1] == "f:":
            how = ""
        results[value[0]] = how
    divided = ROWS
    if draw.random() < 0.03 and form != "plain":
        divided = (*ROWS, draw.choice(["w", "v"]))
    counts = draw.choice([(2, 4), (2, 3), (3, 4), (2, 6), (4, 2)])
    dtype = draw.choices(["float64", "float32"], [92, 8])[0]
    program = Program(tuple(lines), tuple(results.items()), batch, features, counts, form, divided, dtype)
    return trimmed(program)


def trimmed(program: Program) -> Program:
    """The program without lines that nothing depends on."""
    needed = {name for name, _ in program.results}
    kept: list[Line] = []
    for line in reversed(program.lines):
        if needed & set(line.name.split(", ")):
            kept.append(line)
            needed |= _words("\n".join([*line.shown(True), *line.shown(False)]))
    return replace(program, lines=tuple(reversed(kept)))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


# --- judging ----------------------------------------------------------------------------------


class Verdict(enum.Enum):
    """What holding derivation against running showed."""

    AGREE_EQUAL = "derived, runs equal"
    AGREE_DIFFERENT = "not derived, runs different"
    UNSOUND = "derived, runs DIFFERENT"
    #: Equal on the device counts of the traces, and on no other: a number that fitted by chance.
    CHANCE = "derived, runs different on a count that was not traced"
    NAN = "derived, NaN in one of them"
    INCOMPLETE = "not derived, runs equal"
    UNJUDGED = "not derived, not run"
    DRAWS = "derived in distribution"
    CRASH = "deriving raises"
    NO_PROGRAM = "does not trace"


@dataclass(frozen=True)
class Judged:
    """A verdict, and what it is about."""

    verdict: Verdict
    program: Program
    why: str = ""


def traced(program: Program) -> tuple[Any, list[Any]] | None:
    """The reference and the parallel program for each count, traced; None where they are no programs."""
    arguments = [jax.ShapeDtypeStruct(np.shape(a), a.dtype) for a in program.arguments(0)]
    try:
        reference = jax.make_jaxpr(program.function(False))(*arguments)
        counts = program.counts if program.form != "plain" else program.counts[:1]
        parallel = [jax.make_jaxpr(program.mapped(n))(*arguments) for n in counts]
    except Exception:
        return None
    return reference, parallel


def derived(program: Program) -> Shown | None:
    """What is derived of a program."""
    found = traced(program)
    return None if found is None else derive(found[0], found[1], tuple(INPUTS))


def close(got: Any, wanted: Any, dtype: str) -> bool:
    """Whether arrays are equal but for rounding."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return False
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    within = 1e-7 if dtype == "float64" else 2e-3
    size = np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0)
    return bool(np.allclose(got, wanted, rtol=within, atol=within * (size + 1e-3), equal_nan=True))


def differs(program: Program, devices: int) -> tuple[str, bool] | None:
    """How running differs on so many devices, and whether by NaN alone; None where it does not."""
    text = program.source(True)
    dtype = "float32" if "float32" in text or program.dtype == "float32" else "float64"
    mapped = jax.jit(program.mapped(devices))
    reference = jax.jit(program.function(False))
    for kind in (0, 1):
        arguments = program.arguments(kind)
        wanted, got = reference(*arguments), mapped(*arguments)
        for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
            if one.shape != other.shape or one.dtype != other.dtype:
                return f"result {index}: {one.dtype}{one.shape}, reference {other.dtype}{other.shape}", False
            for shard in one.addressable_shards:
                part = other[shard.index]
                if not close(shard.data, part, dtype):
                    nan = bool(np.any(np.isnan(shard.data) != np.isnan(part)))
                    return f"result {index} on {devices} devices, data {kind}: {shard.data} for {part}", nan
    return None


def judge(program: Program, run: bool = True, share: float = 0.15) -> Judged:
    """Derive a program and, where it is derived or drawn for it, run it."""
    found = traced(program)
    if found is None:
        return Judged(Verdict.NO_PROGRAM, program)
    try:
        got = derive(found[0], found[1], tuple(INPUTS))
    except Exception as error:
        return Judged(Verdict.CRASH, program, f"{type(error).__name__}: {error}")
    key = random.Random(program.source(True))
    if got.complete and got.draws:
        return Judged(Verdict.DRAWS, program)
    why = "" if got.complete else f"{got.endings[0].primitive or '-'}: {got.endings[0].why}"
    if not run or (not got.complete and key.random() > share):
        return Judged(Verdict.UNJUDGED, program, why)
    # A count that was traced and one that was not.
    counts = [program.counts[0], next(n for n in (3, 2, 4) if n not in program.counts)]
    if program.form == "plain":
        counts = counts[:1]
    elif key.random() < 0.5:
        counts.reverse()
    if got.complete and key.random() < 0.6:
        counts = counts[-1:]
    try:
        apart = [(n, difference) for n in counts if (difference := differs(program, n)) is not None]
    except Exception as error:
        if not got.complete:
            return Judged(Verdict.AGREE_DIFFERENT, program, why)
        # It may not be divisible by that count: then it is no program there.
        try:
            apart = [(n, d) for n in program.counts if (d := differs(program, n)) is not None]
        except Exception:
            return Judged(Verdict.NO_PROGRAM, program, str(error))
    if not got.complete:
        return Judged(Verdict.AGREE_DIFFERENT if apart else Verdict.INCOMPLETE, program, why)
    if not apart:
        return Judged(Verdict.AGREE_EQUAL, program)
    count, (text, nan) = apart[0]
    if nan:
        return Judged(Verdict.NAN, program, text)
    if (
        count not in program.counts
        and program.form != "plain"
        and differs(program, program.counts[0]) is None
    ):
        return Judged(Verdict.CHANCE, program, text)
    return Judged(Verdict.UNSOUND, program, text)


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less."""
    for index in range(len(program.results)):
        if len(program.results) > 1:
            yield trimmed(replace(program, results=program.results[:index] + program.results[index + 1 :]))
    for line in program.lines:
        for name in line.name.split(", "):
            for how in ("", "i"):
                yield trimmed(replace(program, results=((name, how),)))
    for index, line in enumerate(program.lines):
        for other in _smaller_line(line):
            yield trimmed(
                replace(program, lines=(*program.lines[:index], other, *program.lines[index + 1 :]))
            )
        if re.fullmatch(r"a\d+", line.name):
            for word in INPUTS:
                other = Line(line.name, word)
                if (line.text, line.changed, line.collective) != (word, "", ""):
                    yield trimmed(
                        replace(program, lines=(*program.lines[:index], other, *program.lines[index + 1 :]))
                    )
    if program.divided != ROWS:
        yield replace(program, divided=ROWS)
    if program.form in ("pmap", "True"):
        yield replace(program, form="False")


def _smaller_line(line: Line) -> Iterator[Line]:
    if line.changed:
        yield replace(line, changed="")
    if line.collective:
        yield replace(line, collective="")
    for index, each in enumerate(line.inner):
        for other in _smaller_line(each):
            yield replace(line, inner=(*line.inner[:index], other, *line.inner[index + 1 :]))
        if len(line.inner) > 1:
            yield replace(line, inner=line.inner[:index] + line.inner[index + 1 :])


def shrunk(program: Program, verdict: Verdict, seconds: float = 60.0) -> Program:
    """A smaller program that gets the same verdict."""
    ends = time.monotonic() + seconds
    seen: set[Program] = {program}
    again = True
    while again:
        again = False
        for other in smaller(program):
            if time.monotonic() > ends:
                return program
            if other in seen or len(other.source(True)) > len(program.source(True)):
                continue
            seen.add(other)
            if judge(other).verdict is verdict:
                program, again = other, True
                break
    return program


def hold(seeds: Sequence[int], run: bool = True, share: float = 0.15) -> Iterator[Judged]:
    """Judge the programs of seeds."""
    for done, seed in enumerate(seeds):
        if done % 400 == 399:
            jax.clear_caches()
        yield judge(programs(seed), run, share)


def main() -> int:
    """Judge many programs; 1 where one is unsound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.1, help="share of what is not derived that is run")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    verdicts: collections.Counter[Verdict] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    bad = 0
    began = time.monotonic()
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    for seed, judged in zip(seeds, hold(seeds, True, arguments.share), strict=True):
        verdicts[judged.verdict] += 1
        if judged.verdict is Verdict.INCOMPLETE:
            reasons[judged.why] += 1
        if judged.verdict in (Verdict.UNSOUND, Verdict.CHANCE, Verdict.NAN, Verdict.CRASH):
            bad += judged.verdict is not Verdict.NAN
            small = shrunk(judged.program, judged.verdict)
            print(f"\n--- {judged.verdict.value}, seed {seed}: {judged.why}\n{small.repro()}", flush=True)
    print(f"\n{arguments.count} programs in {time.monotonic() - began:.0f} s")
    for verdict, count in verdicts.most_common():
        print(f"{count:7} {verdict.value}")
    print("\nequal, and not derived:")
    for why, count in reasons.most_common(40):
        print(f"{count:7} {why}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
