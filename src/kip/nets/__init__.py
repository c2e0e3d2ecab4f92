"""Finite networks, for which a distilled set may be meant: models and their training. Needs flax, the extra `nets`."""

try:
    import flax.nnx  # noqa: F401
except ImportError:
    raise ModuleNotFoundError(
        "networks need flax: pip install 'kip-distill[nets]', or in a clone pip install -e '.[nets]'"
    ) from None
