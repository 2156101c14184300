"""`jax-pmap check`: hand-written parallel code, generated files and the snippets of pages, for CI."""
