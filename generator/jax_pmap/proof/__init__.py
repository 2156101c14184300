"""Whether the emitted code equals the original, and what is likeliest wrong when it does not."""
