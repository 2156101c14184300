"""Names of operations of a `Sync` that are no collectives."""

#: A key made another one on every device; a device's part of what all of them have, and of a number of rows;
#: a value divided by the number of devices.
FOLD, OWN_SHARE, OWN_SIZE, DIVIDE = "fold_in", "own_share", "own_size", "divide"
#: All of them: they need nothing of other devices.
ON_DEVICE = (FOLD, OWN_SHARE, OWN_SIZE, DIVIDE)
