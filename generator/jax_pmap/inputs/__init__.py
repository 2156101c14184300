"""Where example arguments come from: `--arg` texts, annotations, defaults, and the body itself."""
