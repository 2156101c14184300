"""The process that runs the user's code: standard library, NumPy, jax, and the user's modules.

It is started by `jax_pmap.session` under the *user's* interpreter, where jax-pmap is not
installed, and loads itself from this folder under the name ``_jax_pmap_worker``.
"""
