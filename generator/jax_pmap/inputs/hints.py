"""What the name of an argument (or of an entry in one) says it may be."""

from __future__ import annotations

import re

#: Hint → names that carry it, as whole words with trailing digits and underscores set aside.
_NAMES = {
    "key": "key rng rngs prng prng_key prngkey dropout_key dropout_rng sample_key noise_key",
    "scalar": (
        "lr learning_rate alpha eps epsilon momentum decay weight_decay temperature tau beta1 "
        "beta2 rate rho dropout_rate max_norm clip clip_norm threshold smoothing label_smoothing "
        "discount scale_factor factor coefficient coef l2 reg dt delta loss_scale step_size"
    ),
    "step": "step iteration epoch t_step global_step i",
    "size": (
        "num_devices n_devices num_steps n_steps num_classes n_classes num_heads n_heads "
        "num_layers n_layers axis dim num_shards num_microbatches window k_size kernel_size "
        "stride num_samples n_samples count length max_len"
    ),
    "flag": "train training is_training deterministic causal verbose normalize use_bias inference",
    "labels": "label labels class classes action actions idx indices index ids y_true_labels",
    "tokens": "tokens token input_ids token_ids ids_in words",
    "mask": (
        "mask masks attention_mask padding_mask loss_mask valid sample_weight sample_weights example_weights"
    ),
    "image": "image images img imgs pixels frames",
    "sequence": "q k v query queries keys values qkv hidden hidden_states embeddings sequence seq",
    "vector": "reward rewards done dones returns advantages lengths discounts",
    "data": (
        "x xs y ys input inputs batch data obs observation observations target targets logit "
        "logits pred preds prediction predictions features samples sample points feats a u z "
        "examples y_true y_pred y_hat text signal anchors positives negatives"
    ),
    "parameter": (
        "param params parameters w ws b bs weight weights theta kernel kernels bias biases model "
        "state variables layer layers table embedding embed emb gamma scale beta centroids "
        "centers codebook mean_ var_ w_in w_out wq wk wv wo w_q w_k w_v w_o coeffs prototypes "
        "dense"
    ),
    "like": (
        "velocity velocities mu nu m grads grad g gradient gradients ema ema_params avg_params "
        "average moments target_params old_params new_params momentum_buffer momenta trace "
        "updates cache_grads"
    ),
}
_HINTS = {name: hint for hint, names in _NAMES.items() for name in names.split()}
_ENDINGS = (
    ("_key", "key"),
    ("_rng", "key"),
    ("_rate", "scalar"),
    ("_mask", "mask"),
    ("_ids", "tokens"),
    ("_labels", "labels"),
    ("_params", "parameter"),
    ("_weight", "parameter"),
    ("_bias", "parameter"),
    ("_kernel", "parameter"),
    ("_images", "image"),
)
_STARTS = (
    ("num_", "size"),
    ("n_", "size"),
    ("is_", "flag"),
    ("use_", "flag"),
    ("w_", "parameter"),
    ("b_", "parameter"),
)


def hint_of(name: str) -> str:
    """Hint of a name, or ``""``."""
    plain = name.lower()
    word = re.sub(r"_?\d+$", "", plain)
    for candidate in (plain, word):
        if candidate in _HINTS:
            return _HINTS[candidate]
    for ending, hint in _ENDINGS:
        if plain.endswith(ending):
            return hint
    return next((hint for start, hint in _STARTS if plain.startswith(start)), "")
