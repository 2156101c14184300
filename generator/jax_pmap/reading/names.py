"""Names people give to data and to parameters: a hint where structure says nothing."""

from __future__ import annotations

import re

DATA_NAMES = frozenset(
    [
        "x",
        "y",
        "xs",
        "ys",
        "z",
        "batch",
        "batches",
        "data",
        "inputs",
        "input",
        "targets",
        "target",
        "labels",
        "label",
        "images",
        "image",
        "img",
        "imgs",
        "tokens",
        "token_ids",
        "ids",
        "obs",
        "observations",
        "actions",
        "rewards",
        "examples",
        "example",
        "samples",
        "sample",
        "features",
        "feats",
        "batch_x",
        "batch_y",
        "x_batch",
        "y_batch",
        "pred",
        "preds",
        "predictions",
        "prediction",
        "logits",
        "true",
        "y_true",
        "y_pred",
        "mask",
        "masks",
        "weights_per_example",
        "sequences",
        "seq",
        "points",
        "queries",
        "query",
        "q",
        "k",
        "v",
        "keys",
        "values",
        "text",
        "inputs_ids",
        "minibatch",
        "transitions",
        "trajectories",
        "states",
        "next_obs",
        "dones",
        "advantages",
        "returns",
        "signal",
        "signals",
    ]
)
STATE_NAMES = frozenset(
    [
        "params",
        "param",
        "parameters",
        "weights",
        "weight",
        "w",
        "b",
        "bias",
        "theta",
        "phi",
        "model",
        "state",
        "train_state",
        "opt_state",
        "optimizer_state",
        "optimizer",
        "opt",
        "variables",
        "kernel",
        "ema",
        "ema_params",
        "target_params",
        "momentum",
        "velocity",
        "mu",
        "nu",
        "m",
        "table",
        "embedding",
        "embeddings",
        "codebook",
        "centroids",
        "config",
        "cfg",
        "lr",
        "learning_rate",
        "step",
        "scale",
        "temperature",
        "alpha",
        "beta",
        "gamma",
        "eps",
        "epsilon",
        "sigma",
        "prior",
        "graphdef",
    ]
)
#: Last words of longer names that say the same: ``src_tokens``, ``teacher_params``. A mask may be one of
#: positions, and a state one for each example.
LAST_DATA_WORDS = frozenset(
    {"actions", "batch", "data", "examples", "features", "ids", "image", "images", "inputs", "labels"}
    | {"obs", "observations", "pixels", "points", "rewards", "samples", "sequences", "tokens", "x", "y"}
)
LAST_STATE_WORDS = frozenset(["params", "parameters", "variables", "optimizer", "stats"])
#: One of several matrices: ``Wq``, ``W_out``, ``w_hh``.
MATRIX = re.compile(r"W_?\w{1,4}|w_\w{1,4}|w[a-z]")
#: What parts of a state or a model are called, and parts of a batch are not.
PARTS_OF_STATE = frozenset(
    [
        "params",
        "opt_state",
        "batch_stats",
        "target_params",
        "ema_params",
        "kernel",
        "bias",
        "embedding",
    ]
)


def names_data(name: str) -> bool:
    """Whether an argument is called like a batch: ``x``, ``x1``, ``src_tokens``."""
    plain = _plain(name)
    return plain in DATA_NAMES or plain.rpartition("_")[2] in LAST_DATA_WORDS


def names_state(name: str) -> bool:
    """Whether an argument is called like parameters, a state or an option: ``w2``, ``teacher_params``."""
    plain = _plain(name)
    last = plain.rpartition("_")[2]
    return plain in STATE_NAMES or last in LAST_STATE_WORDS or MATRIX.fullmatch(name) is not None


def _plain(name: str) -> str:
    """A name in small letters, without a number behind it."""
    return name.lower().rstrip("0123456789").rstrip("_")
