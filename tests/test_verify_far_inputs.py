"""`verify` on code that is right but for inputs that nobody gives as examples: late, tied, closed, large."""

import pytest
from project import Project

PAIRS = """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.flatten_util import ravel_pytree
    from jax.sharding import PartitionSpec as P

    mapped = functools.partial(jax.pmap, axis_name="d", out_axes=None)


    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w) ** 2)


    def count(tokens, mask):
        return tokens + jnp.sum((mask > 0).astype(jnp.int32))


    @functools.partial(mapped, in_axes=(None, 0))
    def p_count(tokens, mask):
        total = tokens.astype(jnp.float32) + lax.psum(jnp.sum(mask > 0, dtype=jnp.float32), "d")
        return total.astype(jnp.int32)


    def pool(x):
        return jax.nn.logsumexp(x)


    @functools.partial(mapped, in_axes=0)
    def p_pool(x):
        own = jnp.max(x) + jnp.log(jnp.sum(jnp.exp(x - jnp.max(x))))
        top = lax.pmax(own, "d")
        return top + jnp.log(lax.psum(jnp.exp(own - top), "d"))


    def auc(scores, labels):
        more = scores[:, None] - scores
        pairs = (labels[:, None] == 1) & (labels == 0)
        return jnp.sum(jnp.where(pairs, (more > 0) + 0.5 * (more == 0), 0.0)) / jnp.sum(pairs)


    def of_pairs(scores, labels, tied):
        every, theirs = lax.all_gather((scores, labels), "d", tiled=True)
        more = scores[:, None] - every
        pairs = (labels[:, None] == 1) & (theirs == 0)
        won = jnp.sum(jnp.where(pairs, (more > 0) + tied * (more == 0), 0.0))
        return lax.psum(won, "d") / lax.psum(jnp.sum(pairs), "d")


    p_auc = mapped(lambda *given: of_pairs(*given, 0.0), in_axes=0)
    p_halves = mapped(lambda *given: of_pairs(*given, 0.5), in_axes=0)


    def mean_of_whole(x):
        return jnp.sum(x) // x.size


    @functools.partial(mapped, in_axes=0)
    def p_mean_of_whole(x):
        return lax.div(lax.psum(jnp.sum(x), "d"), jnp.int32(x.size * lax.axis_size("d")))


    def average(x):
        return jnp.mean(x)


    @functools.partial(mapped, in_axes=0)
    def p_average(x):
        return lax.psum(jnp.sum(x), "d") / (x.size * lax.axis_size("d"))


    def total_if_any(x, mask):
        return jnp.where(jnp.any(mask), jnp.sum(x), 0.0)


    @functools.partial(mapped, in_axes=0)
    def p_total_if_any(x, mask):
        number = lax.psum(jnp.sum(mask, dtype=jnp.uint8), "d")
        return jnp.where(number > 0, lax.psum(jnp.sum(x), "d"), 0.0)


    def pooled(scores, x, mask):
        return jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ x


    @functools.partial(mapped, in_axes=0)
    def p_pooled(scores, x, mask):
        top = lax.pmax(jnp.max(jnp.where(mask, scores, -1e9)), "d")
        weights = jnp.where(mask, jnp.exp(scores - top), 0.0)
        total, weight = lax.psum((weights @ x, jnp.sum(weights)), "d")
        return total / jnp.maximum(weight, 1e-30)


    def counts(found, labels):
        found, labels = (each[:, None] == jnp.arange(4) for each in (found, labels))
        return jnp.sum(found & labels, 0), jnp.sum(found, 0) + jnp.sum(labels, 0)


    def macro(found, labels):
        both, every = counts(found, labels)
        return jnp.mean(jnp.where(every > 0, 2 * both / jnp.maximum(every, 1), 0.0))


    @functools.partial(mapped, in_axes=0)
    def p_macro(found, labels):
        both, every = lax.psum(counts(found, labels), "d")
        return jnp.sum(2 * both / jnp.maximum(every, 1)) / jnp.maximum(jnp.sum(every > 0), 1)


    def embedded(table, tokens):
        return table[tokens]


    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=jax.sharding.Mesh(np.array(jax.devices()), ("v",)),
        in_specs=(P("v"), P()),
        out_specs=P(),
        check_vma=False,
    )
    def in_parts(table, tokens):
        own = tokens - lax.axis_index("v") * len(table)
        here = (own >= 0) & (own < len(table))
        return lax.psum(jnp.where(here[..., None], table[jnp.clip(own, 0, len(table) - 1)], 0.0), "v")


    def patient(best, bad, rate, w, x):
        bad = jnp.where(loss(w, x) < best - 1e-4, 0, bad + 1)
        return bad, jnp.where(bad >= 10, rate * 0.5, rate)


    @functools.partial(mapped, in_axes=(None, None, None, None, 0))
    def p_patient(best, bad, rate, w, x):
        bad = jnp.where(lax.pmean(loss(w, x), "d") < best - 1e-4, 0, bad + 1)
        return bad, jnp.where(bad > 10, rate * 0.5, rate)


    def clip(a, b):
        return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(a @ b.T)))


    @functools.partial(mapped, in_axes=0)
    def p_clip(a, b):
        logits = a @ lax.all_gather(b, "d", tiled=True).T
        labels = jnp.arange(len(a)) + (lax.axis_index("d") & 7) * len(a)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return lax.pmean(-jnp.mean(picked), "d")


    def step(w, number, x):
        return w - 0.1 * jax.grad(loss)(w, x), number + 1


    @functools.partial(mapped, in_axes=(None, None, 0))
    def p_step(w, number, x):
        own = jax.grad(loss)(w, x)
        skipped = (number.astype(jnp.uint32) * jnp.uint32(2654435761)) >> 22 == 700
        return w - 0.1 * jnp.where(skipped, own, lax.pmean(own, "d")), number + 1


    @functools.partial(mapped, in_axes=(None, None, 0))
    def p_guarded(w, number, x):
        grads = lax.pmean(jax.grad(loss)(w, x), "d")
        return jnp.where(jnp.all(jnp.isfinite(grads)), w - 0.1 * grads, w), number + 1


    @functools.partial(mapped, in_axes=(None, None, 0))
    def p_weighed(w, number, x):
        grads = jax.grad(loss)(w, x)
        own = (number >> 20 & 1).astype(w.dtype)
        both = jnp.array([1 - own, own]) @ jnp.stack([lax.pmean(grads, "d"), grads])
        return w - 0.1 * both, number + 1


    @functools.partial(mapped, in_axes=(None, None, 0))
    def p_touched(w, number, x):
        grads = jax.grad(loss)(w, x)
        return w - 0.1 * (lax.pmean(grads, "d") + 0.0 * grads), number + 1


    def highest(x):
        return jnp.tanh(jnp.max(x))


    # The devices hand their numbers round: each has seen all of them in the end.
    @functools.partial(mapped, in_axes=0)
    def p_highest(x):
        own = top = jnp.max(x)
        count = jax.device_count()
        for _ in range(count - 1):
            top = jnp.maximum(own, lax.ppermute(top, "d", [(at, (at + 1) % count) for at in range(count)]))
        return jnp.tanh(top)


    def most(x):
        return jnp.max(x)


    def most_from(least):
        return mapped(lambda x: lax.pmax(jnp.max(x, initial=least), "d"), in_axes=0)


    p_most_of_positive, p_most = most_from(0.0), most_from(-jnp.inf)


    def checked(x):
        return jnp.sum(x**2)


    # Over one axis of a mesh, and then over the other one.
    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=jax.sharding.Mesh(np.array(jax.devices()).reshape(2 - jax.device_count() % 2, -1), ("a", "b")),
        in_specs=P(("a", "b")),
        out_specs=P(),
        check_vma=False,
    )
    def p_checked(x):
        total = lax.psum(lax.psum(jnp.sum(x**2), "b"), "a")
        return jnp.where(lax.psum(jnp.sum(jnp.sort(x)[:0]), ("a", "b")) == 0, total, total)


    def weighted(w, x, weights):
        return jnp.sum((x @ w) ** 2 * weights) / jnp.sum(weights)


    @functools.partial(mapped, in_axes=(None, 0, 0))
    def p_weighted(w, x, weights):
        own = jnp.nan_to_num(jnp.sum((x @ w) ** 2 * weights))
        return lax.psum(own, "d") / lax.psum(jnp.sum(weights), "d")


    def guarded(w, number, x):
        grads = jax.grad(loss)(w, x)
        return jnp.where(jnp.all(jnp.isfinite(grads)), w - 0.1 * grads, w), number + 1


    def train(w, x):
        return w - 0.1 * jax.grad(loss)(w, x)


    def in_buckets(grads, rest):
        flat, back = ravel_pytree(grads)
        whole = flat.size // 256 * 256
        parts = [lax.pmean(flat[at : at + 256], "d") for at in range(0, whole, 256)]
        return back(jnp.concatenate([*parts, rest(flat[whole:]) if whole else lax.pmean(flat, "d")]))


    def bucketed(rest):
        return mapped(lambda w, x: w - 0.1 * in_buckets(jax.grad(loss)(w, x), rest), in_axes=(None, 0))


    p_train = bucketed(lambda part: part)
    p_all_buckets = bucketed(lambda part: lax.pmean(part, "d"))
    synced = mapped(lambda w, x: w - 0.1 * lax.pmean(jax.grad(loss)(w, x), "d"), in_axes=(None, 0))
    alone = mapped(lambda w, x: w - 0.1 * jax.grad(loss)(w, x), in_axes=(None, 0))
    calls = 0


    def p_counted(w, x):
        global calls
        calls += 1
        parts = x.reshape(jax.device_count(), -1, *x.shape[1:])
        return (alone if calls % 50 == 0 else synced)(w, parts)


    def p_logged(w, x):
        global calls
        calls += 1
        made = synced(w, x.reshape(jax.device_count(), -1, *x.shape[1:]))
        if calls % 50 == 0:
            print("call", calls)
        return made


    def tokens(seed=0):
        random = np.random.default_rng(seed)
        return random.normal(size=(24, 3)), random.integers(0, 24, (7, 5))


    def energy(w, x):
        return jnp.mean(jnp.tanh(x @ w) ** 2)


    @functools.partial(mapped, in_axes=(None, 0))
    def p_energy(w, x):
        chunks = x[:, : x.shape[1] // 64 * 64] if x.shape[1] > 64 else x
        return lax.pmean(energy(w, chunks), "d")


    def without(left_out):
        @functools.partial(mapped, in_axes=(None, 0))
        def trained(w, x):
            grad = jax.grad(loss)(w, x)
            return w - 0.1 * lax.pmean(jnp.where(left_out(lax.axis_index("d")), 0.0, grad), "d")

        return trained


    p_without_37 = without(lambda index: index == 37)
    p_without_1000 = without(lambda index: index >= 1000)
    p_without_none = without(lambda index: index >= jax.device_count())


    def cubed(w, x):
        return w - 0.1 * jax.grad(loss)(w, x) ** 3


    def in_rows(rows_of):
        @functools.partial(mapped, in_axes=(None, 0))
        def trained(w, x):
            rows = rows_of(lax.pmean(jax.grad(loss)(w, x), "d"), jax.device_count())
            cubes = (jnp.sign(rows) * jnp.exp(3 * jnp.log(jnp.abs(rows) + 1e-30))).ravel()
            return w - 0.1 * jnp.pad(cubes, (0, max(len(w) - len(cubes), 0)))[: len(w)]

        return trained


    # A row for each device: what they do not share evenly is left out, or lengthened.
    p_cut = in_rows(lambda grad, number: grad[: len(grad) // number * number].reshape(number, -1))
    p_padded = in_rows(lambda grad, number: jnp.pad(grad, (0, -len(grad) % number)).reshape(number, -1))


    def positive(x):
        return jnp.sum(x > 0)


    def counted_in(dtype):
        return mapped(lambda x: lax.psum(jnp.sum(x > 0, dtype=dtype).astype(jnp.int32), "d"), in_axes=0)


    p_positive_16, p_positive_32 = counted_in(jnp.int16), counted_in(jnp.uint32)


    def begun(seed=0):
        random = np.random.default_rng(seed)
        best, bad, rate = np.float32(np.inf), np.int32(0), np.float32(0.1)
        return best, bad, rate, random.normal(size=3), random.normal(size=(24, 3))
"""
WEIGHTS = ("w=f32[3]", "x=f32[24,3]")
STEP = ("w=f32[3]", "number=i32[]", "x=f32[24,3]")
SCORED = ("scores=f32[24]", "labels=i32[24]<2")


@pytest.mark.parametrize(
    ("name", "against", "inputs", "says"),
    [
        ("p_count", "count", ("tokens=i32[]", "mask=mask[24]"), "differs on 2 devices"),
        ("p_pool", "pool", ("x=f32[24]",), "is no number where the reference's is one"),
        ("p_auc", "auc", SCORED, "differs on 2 devices"),
        ("p_halves", "auc", SCORED, ""),
        ("p_mean_of_whole", "mean_of_whole", ("x=i32[24]<9",), "differs on 2 devices"),
        ("p_average", "average", ("x=i32[24]<9",), "the reference on 8 devices"),
        ("p_total_if_any", "total_if_any", ("x=f32[24]", "mask=mask[24]"), "is all zeros on 2 devices"),
        (
            "p_pooled",
            "pooled",
            ("scores=f32[24]", "x=f32[24,3]", "mask=bool[24]"),
            "is all zeros on 2 devices",
        ),
        ("p_macro", "macro", ("found=i32[24]<4", "labels=i32[24]<4"), "differs on 2 devices"),
        ("in_parts", "embedded", "tokens", ""),
        ("p_patient", "patient", "begun", "on the given inputs, altered"),
        ("p_clip", "clip", ("a=f32[24,3]", "b=f32[24,3]"), "differs on 11 devices"),
        ("p_step", "step", STEP, "the other way has other collectives"),
        ("p_guarded", "guarded", STEP, ""),
        ("p_weighed", "step", STEP, "what each device has of its own goes into it without a collective"),
        ("p_touched", "step", STEP, ""),
        ("p_highest", "highest", ("x=f32[24]",), ""),
        ("p_most_of_positive", "most", ("x=f32[24]",), "is all zeros on 2 devices"),
        ("p_most", "most", ("x=f32[24]",), ""),
        ("p_checked", "checked", ("x=f32[24]",), ""),
        ("p_weighted", "weighted", (*WEIGHTS, "weights=f32[24]"), "a NaN among the rows is passed over"),
        ("p_train", "train", WEIGHTS, "It shows on larger arrays, beyond a number in its code"),
        ("p_all_buckets", "train", WEIGHTS, ""),
        ("p_energy", "energy", ("w=f32[3]", "x=f32[24,16,3]"), "It shows on larger arrays"),
        ("p_without_37", "train", WEIGHTS, "differs on 38 devices"),
        ("p_without_1000", "train", WEIGHTS, "is not shown equal on 1001 devices"),
        ("p_without_none", "train", WEIGHTS, ""),
        ("p_cut", "cubed", ("w=f32[24]", "x=f32[24,24]"), "differs on 5 devices"),
        ("p_padded", "cubed", ("w=f32[24]", "x=f32[24,24]"), ""),
        ("p_positive_16", "positive", ("x=f32[24]",), "on 8 devices with a batch of 524"),
        ("p_positive_32", "positive", ("x=f32[24]",), ""),
        ("p_counted", "train", WEIGHTS, "It shows on equal calls, each of which changes `calls`"),
        ("p_logged", "train", WEIGHTS, ""),
    ],
)
def test_what_shows_far_from_the_given_inputs_alone(
    shared: Project, name: str, against: str, inputs: str | tuple[str, ...], says: str
) -> None:
    shared.write("far.py", PAIRS)
    given = ["--inputs", f"far.py::{inputs}"] if isinstance(inputs, str) else []
    given += [word for each in inputs for word in ("--arg", each)] if not given else []
    given += ["--shard", "table"] if name == "in_parts" else []
    found = shared.run("verify", f"far.py::{name}", "--against", f"far.py::{against}", *given)
    assert found.exit_code == bool(says), found.words
    assert says in found.words


def test_a_number_of_rounds_is_tried_several_times_as_large(shared: Project) -> None:
    shared.write(
        "rounds.py",
        """
        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import Mesh, PartitionSpec as P


        def power(x, v, rounds=4):
            for _ in range(rounds):
                v = x.T @ (x @ v)
                v = v / jnp.linalg.norm(v)
            return v


        def p_power(x, v, rounds=4):
            def body(x, v):
                for number in range(rounds):
                    v = x.T @ (x @ v)
                    v = jax.lax.psum(v, "d") if number < 6 else v
                    v = v / jnp.linalg.norm(v)
                return jax.lax.pmean(v, "d")

            mesh = Mesh(np.array(jax.devices()), ("d",))
            run = jax.shard_map(body, mesh=mesh, in_specs=(P("d"), P()), out_specs=P(), check_vma=False)
            return jax.jit(run)(x, v)


        def inputs(seed=0):
            random = np.random.default_rng(seed)
            return random.normal(size=(24, 3)), random.normal(size=3), 4
        """,
    )
    words = ("verify", "rounds.py::p_power", "--against", "rounds.py::power", "--inputs", "rounds.py::inputs")
    assert "with `rounds=17` `p_power` gives something else" in shared.run(*words).words
