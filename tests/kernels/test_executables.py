"""Compiled programs: one per function and shape, a bounded number, given back to the system."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kip.kernels import executables as module
from kip.kernels.executables import Executables

MAPS = Path("/proc/self/maps")


def power(exponent: int, x: Any) -> Any:
    return jnp.sin(x) ** exponent


def test_a_program_is_compiled_once_per_static_argument_shape_and_dtype() -> None:
    kept, x = Executables(), np.linspace(0, 1, 4, dtype=np.float32)
    run = functools.partial(kept.run, power, options={})
    for exponent, argument in ((2, x), (2, x + 1), (3, x), (2, x[:3]), (2, x.astype(np.int32)), (3, x)):
        np.testing.assert_allclose(run((exponent,), argument), np.sin(argument) ** exponent, rtol=1e-6)
    assert len(kept) == 4


def test_the_least_recently_used_is_given_back_first() -> None:
    kept, x = Executables(limit=2), np.ones(3, np.float32)
    run = functools.partial(kept.run, power, options={})
    programs = {}
    for exponent in (1, 2, 1, 3):
        run((exponent,), x)
        programs[exponent] = next(reversed(kept._kept.values()))
    assert len(kept) == 2
    assert [programs[exponent]._cache_size() for exponent in (1, 2, 3)] == [1, 0, 1]


@pytest.mark.skipif(not MAPS.exists(), reason="counts memory mappings as Linux states them")
def test_mappings_go_back_to_the_system() -> None:
    def mappings() -> int:
        return len(MAPS.read_text().splitlines())

    kept, x = Executables(), np.ones((3, 3), np.float32)
    start = mappings()
    for exponent in range(50, 70):
        kept.run(power, (exponent,), x, options={})
    held = mappings()
    kept.clear()
    assert held - start >= 20
    assert mappings() - start < (held - start) / 2
    assert len(kept) == 0


def test_inside_a_trace_it_is_a_part_of_that() -> None:
    kept = Executables()
    double = jax.jit(lambda x: 2 * kept.run(power, (2,), x, options={"xla_backend_optimization_level": 0}))
    np.testing.assert_allclose(double(np.ones(2, np.float32)), 2 * np.sin(1) ** 2, rtol=1e-6)
    assert len(kept) == 0


def test_options_that_xla_does_not_know_are_left_out() -> None:
    known = module._known((("xla_backend_optimization_level", 0), ("xla_cpu_no_such_option", True)))
    assert known == {"xla_backend_optimization_level": 0}
