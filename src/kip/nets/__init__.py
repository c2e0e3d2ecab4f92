"""Finite networks, for which a distilled set may be meant: models and their training. Needs flax: kip[nets]."""

try:
    import flax.nnx  # noqa: F401
except ImportError:
    raise ModuleNotFoundError("networks need flax: install kip[nets], as in pip install 'kip[nets]'") from None
