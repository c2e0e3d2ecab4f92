"""What holds for all tests: none asserts a time, Hypothesis's own deadline included."""

from hypothesis import settings

settings.register_profile("kip", deadline=None)
settings.load_profile("kip")
