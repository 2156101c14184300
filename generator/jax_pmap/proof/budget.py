"""What of a worker's limits the second witness may take."""

#: The share of the memory limit, and of the time limit, that a run may take where equality is derived.
ROOM, TIME = 3 / 8, 1 / 3
