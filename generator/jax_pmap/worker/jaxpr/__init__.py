"""Traced programs: how they are made, walked, and led back to the source they came from."""
