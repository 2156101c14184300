# flags: gen mean --inputs this::inputs
import numpy as np


def mean(x):
    assert x.shape[0] == 24
    return x.mean()


def inputs(seed):
    return (np.random.default_rng(seed).normal(size=(24, 5)).astype("float32"),)
# refused JP040 line 6: AssertionError: `assert x.shape[0] == 24`
