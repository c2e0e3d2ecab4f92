"""The jitted code of the Numba engine: offset planes with several target images in the SIMD lanes, and their pullback.

Everything compiled lives in this file, because Numba's cache on disk misses changes in other files. Arrays of lanes are
flat: element [v·lanes + k] is entry v for the image in lane k, and every index below counts vectors of 64 bytes (16
float32 or 8 float64). A plane (o_y, o_x) of h × w entries is stored with a border of zeros, so that a box sum needs no
special case; the planes between two levels are stored compactly, one after another, at `bases`.

The formulas are those of `planes`. With s = √d, r = 1/√d and S the pre-activation, u = S r r′ and, going back,

    S̄ = ½κ₀ K̄ + m Θ̄      Θ̄_before = ½κ₀ Θ̄      d̄ += r (K̄ ¼ s′(κ₁ − uκ₀) − Θ̄ ½ r m S)      m = ½ Θ κ₀′(u) r r′
"""

# mypy: disable-error-code="call-arg, arg-type, import-untyped"
# (an intrinsic is called without the typing context that its definition takes, which its stubs do not know)

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

VECTOR_BYTES = 64

SNAP_ULPS = 8
"""As in `kip.kernels.relu` (a test compares them): a constant of another file would be compiled in unseen."""


def _has_cache() -> bool:
    """Whether compiled code can be kept: beside this file, or where that is read-only in the user's cache folder."""
    try:
        njit(cache=True)(_has_cache)
    except RuntimeError:  # neither can be written: compile anew in each process
        return False
    return True


_OPTIONS: dict[str, Any] = {"cache": _has_cache(), "error_model": "numpy", "boundscheck": False, "nogil": True}
# Within a task nothing is allocated, and counting references to views at every plane took a tenth of the time.
_INNER = {**_OPTIONS, "_nrt": False}
# Products and sums may be fused and the sign of zero is free; nothing else is relaxed: the snap at u = ±1 must stay.
_FLAGS = ("contract", "nsz")


def _series(degree: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Polynomials P, Q on [0, 1], lowest coefficient first, of κ₁ = max(u, 0) + t^{3/2} P(t), κ₀ = 1 − t^{1/2} Q(t).

    Q has the power series of arccos(1 − t)/(π√t), radius of convergence 2, and P_k = Q_k/(k + 3/2) since κ₁′ = κ₀.
    """
    q = [math.sqrt(2) / math.pi]
    for k in range(60):
        q.append(q[-1] * (2 * k + 1) ** 2 / (4 * (k + 1) * (2 * k + 3)))
    p = [c / (k + 1.5) for k, c in enumerate(q)]
    fits = (np.polynomial.Chebyshev.interpolate(np.polynomial.Polynomial(c), degree, domain=[0, 1]) for c in (p, q))
    p_fit, q_fit = (tuple(float(c) for c in f.convert(kind=np.polynomial.Polynomial).coef) for f in fits)
    return p_fit, q_fit


_POLYNOMIALS = {types.float32: _series(6), types.float64: _series(19)}


# --- vectors of lanes -------------------------------------------------------------------------------------------------


class Lanes(types.Type):
    """A vector of 64 bytes, as LLVM has it; wider than a machine's registers it is split by the compiler."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        single = lanes.dtype == types.float32
        element = ir.FloatType() if single else ir.DoubleType()
        super().__init__(manager, lanes, ir.VectorType(element, VECTOR_BYTES // (4 if single else 8)))


def _splat(context: Any, builder: Any, value: Any, source: Any, lanes: Lanes) -> Any:
    vector = context.get_value_type(lanes)
    value = context.cast(builder, value, source, lanes.dtype)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Vector number `index` of a flat array."""
    lanes = Lanes(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(data, context.get_value_type(lanes).as_pointer())
        return builder.load(builder.gep(pointer, [args[1]]), align=array.dtype.bitwidth // 8)

    return lanes(array, types.intp), generate


@intrinsic
def load_support(typing: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Number `index` of a support image in every lane; of an array of vectors (n, lanes), vector number `index`.

    Repeated as it is loaded, an image of its own takes an eighth or sixteenth of the cache that its lanes would.
    """
    lanes = Lanes(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        if array.ndim == 1:
            return _splat(context, builder, builder.load(builder.gep(data, [args[1]])), array.dtype, lanes)
        pointer = builder.bitcast(data, context.get_value_type(lanes).as_pointer())
        return builder.load(builder.gep(pointer, [args[1]]), align=array.dtype.bitwidth // 8)

    return lanes(array, types.intp), generate


@intrinsic
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:  # noqa: ARG001
    """Write vector number `index` of a flat array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = args[2]
        if not isinstance(value, Lanes):
            vector = _splat(context, builder, vector, signature.args[2], Lanes(array.dtype))
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(data, vector.type.as_pointer())
        builder.store(vector, builder.gep(pointer, [args[1]]), align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


def _operation(generate_one: Callable[[Any, list[Any]], Any]) -> Any:
    """An intrinsic on vectors, in which numbers are repeated over the lanes."""

    @intrinsic
    def operation(typing: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
        lanes = a if isinstance(a, Lanes) else b

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vectors = [
                arg if isinstance(kind, Lanes) else _splat(context, builder, arg, kind, lanes)
                for arg, kind in zip(args, signature.args, strict=True)
            ]
            return generate_one(builder, vectors)

        return lanes(a, b), generate

    return operation


_add = _operation(lambda builder, v: builder.fadd(*v, flags=_FLAGS))
_sub = _operation(lambda builder, v: builder.fsub(*v, flags=_FLAGS))
_mul = _operation(lambda builder, v: builder.fmul(*v, flags=_FLAGS))
_div = _operation(lambda builder, v: builder.fdiv(*v, flags=_FLAGS))
# a where a > b, else 0: the snap, and max(a, 0)
above = _operation(lambda builder, v: builder.select(builder.fcmp_ordered(">", *v), v[0], ir.Constant(v[0].type, None)))
# b where a is not negative, else 0
where_positive = _operation(
    lambda builder, v: builder.select(
        builder.fcmp_ordered(">=", v[0], ir.Constant(v[0].type, None)), v[1], ir.Constant(v[0].type, None)
    )
)


def _overload_operator(symbol: Any, implementation: Any) -> None:
    @overload(symbol, strict=False)  # annotated here, not in the lambda
    def choose(a: Any, b: Any) -> Any:
        kinds = (a, b)
        if any(isinstance(k, Lanes) for k in kinds) and all(isinstance(k, (Lanes, types.Float)) for k in kinds):
            return lambda a, b: implementation(a, b)
        return None


for _symbol, _implementation in (
    (operator.add, _add),
    (operator.sub, _sub),
    (operator.mul, _mul),
    (operator.truediv, _div),
):
    _overload_operator(_symbol, _implementation)


def _unary(name: str) -> Any:
    @intrinsic
    def operation(typing: Any, a: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            vector = args[0].type
            full = f"llvm.{name}.v{vector.count}f{a.dtype.bitwidth}"
            function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector]), full)
            return builder.call(function, [args[0]])

        return a(a), generate

    return operation


sqrt = _unary("sqrt")
absolute = _unary("fabs")


@intrinsic
def _apart(typing: Any) -> Any:  # noqa: ARG001
    """Keep LLVM from inlining the function this is called in: a copy at each call would take minutes to compile."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _reciprocal(typing: Any, a: Any) -> Any:  # noqa: ARG001
    """1/a where a > 0, else 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        vector = args[0].type
        zero, one = ir.Constant(vector, None), ir.Constant(vector, [1.0] * vector.count)
        return builder.select(builder.fcmp_ordered(">", args[0], zero), builder.fdiv(one, args[0]), zero)

    return a(a), generate


@intrinsic
def total(typing: Any, a: Any) -> Any:  # noqa: ARG001
    """Sum over the lanes, by halves."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        vector, count = args[0], args[0].type.count
        index = ir.IntType(32)
        while count > 1:
            count //= 2
            low, high = (
                builder.shuffle_vector(
                    vector, vector, ir.Constant(ir.VectorType(index, count), list(range(s, s + count)))
                )
                for s in (0, count)
            )
            vector = builder.fadd(low, high)
        return builder.extract_element(vector, ir.Constant(index, 0))

    return a.dtype(a), generate


def _horner(which: int) -> Any:
    @intrinsic
    def polynomial(typing: Any, t: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            vector = args[0].type
            constants = [ir.Constant(vector, [c] * vector.count) for c in _POLYNOMIALS[t.dtype][which]]
            value = constants.pop()
            while constants:
                value = builder.fadd(builder.fmul(value, args[0], flags=_FLAGS), constants.pop(), flags=_FLAGS)
            return value

        return t(t), generate

    return polynomial


_p, _q = _horner(0), _horner(1)


@intrinsic
def _snap(typing: Any, u: Any) -> Any:  # noqa: ARG001
    """The t = 1 − |u| below which |u| is taken as 1."""
    smallest = SNAP_ULPS * float(np.finfo(str(u.dtype)).eps)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return ir.Constant(args[0].type, [smallest] * args[0].type.count)

    return u(u), generate


@njit(inline="always")
def _gap(u: Any) -> Any:
    """T = 1 − |u|, snapped to 0."""
    return above(1.0 - absolute(u), _snap(u))


@njit(inline="always")
def _kappa1(u: Any, t: Any, root: Any) -> Any:
    # 1 − t rather than u: exact at the snap, so that rounding does not pile up from layer to layer
    return where_positive(u, 1.0 - t) + t * root * _p(t)


@njit(inline="always")
def _kappa0(u: Any, t: Any, root: Any) -> Any:
    h = root * _q(t)
    return h + where_positive(u, 1.0 - (h + h))


_HALF_OVER_PI = 0.5 / math.pi
_QUARTER_OVER_PI = 0.25 / math.pi


# --- one plane --------------------------------------------------------------------------------------------------------
# A plane is addressed in its buffer by the start of K; Θ lies `half` vectors further on. `i` and `j` are the positions
# of its first entry in the maps of the support image (lanes `x`, ½s, r) and of the targets (lanes `y`, s, r).
#
# Constants are passed on as np.int64(0), never 0: Numba compiles a function anew for each literal it is called with.


@njit(**_INNER)
def _clear_border(planes: Any, start: int, h: int, w: int) -> None:
    _apart()
    row = w + 2
    for c in range(row):
        store(planes, start + c, 0.0)
        store(planes, start + (h + 1) * row + c, 0.0)
    for r in range(1, h + 1):
        store(planes, start + r * row, 0.0)
        store(planes, start + r * row + w + 1, 0.0)


@njit(inline="always")
def _column(planes: Any, at: int, row: int) -> Any:
    return load(planes, at) + load(planes, at + row) + load(planes, at + row + row)


@njit(**_INNER)
def _inner_products(
    x: Any, y: Any, planes: Any, h: int, w: int, i: int, j: int, width: int, pixels: int, ch: int
) -> None:
    """K of level 0: the sum over channels of x[p] y[p + o]; the lanes of `x` hold the image over its channels."""
    _apart()
    _clear_border(planes, np.int64(0), h, w)
    for r in range(h):
        at, p, q = (r + 1) * (w + 2) + 1, i + r * width, j + r * width
        if ch == 3:  # colour images, without a loop over channels in the innermost
            for c in range(w):
                red = load_support(x, p + c) * load(y, q + c)
                green = load_support(x, pixels + p + c) * load(y, pixels + q + c)
                blue = load_support(x, 2 * pixels + p + c) * load(y, 2 * pixels + q + c)
                store(planes, at + c, red + green + blue)
            continue
        for c in range(w):
            value = load_support(x, p + c) * load(y, q + c)
            for k in range(1, ch):
                value = value + load_support(x, k * pixels + p + c) * load(y, k * pixels + q + c)
            store(planes, at + c, value)


@njit(**_INNER)
def _take(stored: Any, base: int, planes: Any, start: int, h: int, w: int, scale: float) -> None:
    """Copy a compact plane, times `scale`, into a bordered one."""
    _apart()
    _clear_border(planes, start, h, w)
    for r in range(h):
        at, b = start + (r + 1) * (w + 2) + 1, base + r * w
        for c in range(w):
            store(planes, at + c, load(stored, b + c) * scale)


@njit(**_INNER)
def _put(planes: Any, start: int, stored: Any, base: int, h: int, w: int, scale: float) -> None:
    """Copy a bordered plane, times `scale`, into a compact one."""
    _apart()
    for r in range(h):
        at, b = start + (r + 1) * (w + 2) + 1, base + r * w
        for c in range(w):
            store(stored, b + c, load(planes, at + c) * scale)


@njit(**_INNER)
def _box(planes: Any, source: int, target: int, h: int, w: int, scale: float, shift: float, more: bool) -> None:
    """Box sum times `scale` plus `shift`; with `more`, added to what is there."""
    _apart()
    row = w + 2
    _clear_border(planes, target, h, w)
    for r in range(h):
        at, out = source + r * row, target + (r + 1) * row + 1
        t0, t1 = _column(planes, at, row), _column(planes, at + 1, row)
        for c in range(w):
            t2 = _column(planes, at + c + 2, row)
            value = (t0 + t1 + t2) * scale + shift
            if more:
                value = value + load(planes, out + c)
            store(planes, out + c, value)
            t0, t1 = t1, t2


# What a layer does besides: nothing; save what its adjoint needs; or, as the last of a level on the way back, turn
# round at once: take the cotangent that lies in the third bordered plane, at `bar`, and give the one before the ReLU.
PLAIN, SAVE, TURN = 0, 1, 2


@njit(**_INNER)
def _conv_relu_nngp(
    planes: Any, source: int, target: int, bar: int, h: int, w: int, i: int, j: int, width: int,
    xs: Any, xr: Any, ys: Any, yr: Any, sw: float, sb: float, saved: Any, slot: int, mode: int, d_bar: Any,
) -> None:  # fmt: skip
    """K ← ½√(dd′) κ₁((σ_w² box K + σ_b²)/√(dd′)); what is saved is ½κ₀ and ¼s′(κ₁ − uκ₀)."""
    _apart()
    row, area, ninth = w + 2, h * w, sw / 9.0
    _clear_border(planes, target, h, w)
    for r in range(h):
        at, out, p, q = source + r * row, target + (r + 1) * row + 1, i + r * width, j + r * width
        t0, t1 = _column(planes, at, row), _column(planes, at + 1, row)
        if mode == PLAIN:
            for c in range(w):
                t2 = _column(planes, at + c + 2, row)
                u = ((t0 + t1 + t2) * ninth + sb) * (load_support(xr, p + c) * load(yr, q + c))
                t0, t1 = t1, t2
                t = _gap(u)
                store(planes, out + c, load_support(xs, p + c) * load(ys, q + c) * _kappa1(u, t, sqrt(t)))
        else:
            turn, into, back = mode == TURN, slot + r * w, bar + (r + 1) * row + 1
            for c in range(w):
                t2 = _column(planes, at + c + 2, row)
                u = ((t0 + t1 + t2) * ninth + sb) * (load_support(xr, p + c) * load(yr, q + c))
                t0, t1 = t1, t2
                t = _gap(u)
                root = sqrt(t)
                k1, k0, s = _kappa1(u, t, root), _kappa0(u, t, root), load(ys, q + c)
                rest = s * (k1 - u * k0) * 0.25
                if turn:
                    k_bar = load(planes, back + c)
                    store(planes, out + c, k0 * 0.5 * k_bar)
                    store(d_bar, p + c, load(d_bar, p + c) + rest * k_bar)
                else:
                    store(planes, out + c, load_support(xs, p + c) * s * k1)
                    store(saved, into + c, k0 * 0.5)
                    store(saved, into + area + c, rest)


@njit(**_INNER)
def _conv_relu_ntk(
    planes: Any, source: int, target: int, bar: int, half: int, h: int, w: int, i: int, j: int, width: int,
    xs: Any, xr: Any, ys: Any, yr: Any, sw: float, sb: float, ta: float, tb: float,
    saved: Any, slot: int, mode: int, d_bar: Any,
) -> None:  # fmt: skip
    """The same for K and Θ; what is saved is also m and ½ r m S."""
    _apart()
    row, area, ninth, ta = w + 2, h * w, sw / 9.0, ta / 9.0
    _clear_border(planes, target, h, w)
    _clear_border(planes, target + half, h, w)
    for r in range(h):
        at, out, p, q = source + r * row, target + (r + 1) * row + 1, i + r * width, j + r * width
        t0, t1 = _column(planes, at, row), _column(planes, at + 1, row)
        v0, v1 = _column(planes, at + half, row), _column(planes, at + half + 1, row)
        into, back = slot + r * w, bar + (r + 1) * row + 1
        for c in range(w):
            t2, v2 = _column(planes, at + c + 2, row), _column(planes, at + half + c + 2, row)
            box = t0 + t1 + t2
            pre = box * ninth + sb
            theta = (v0 + v1 + v2) * ninth + (box * ta + tb)
            t0, t1, v0, v1 = t1, t2, v1, v2
            rx, s = load_support(xr, p + c), load(ys, q + c)
            rr = rx * load(yr, q + c)
            u = pre * rr
            t = _gap(u)
            root = sqrt(t)
            slope = _kappa0(u, t, root) * 0.5
            if mode == PLAIN:
                store(planes, out + c, load_support(xs, p + c) * s * _kappa1(u, t, root))
                store(planes, out + half + c, theta * slope)
                continue
            sine = sqrt(t * (2.0 - t))
            m = theta * rr * _reciprocal(sine) * _HALF_OVER_PI
            rest_k, rest_theta = s * sine * _QUARTER_OVER_PI, rx * m * pre * 0.5
            if mode == TURN:
                k_bar, theta_bar = load(planes, back + c), load(planes, back + half + c)
                store(planes, out + c, slope * k_bar + m * theta_bar)
                store(planes, out + half + c, slope * theta_bar)
                store(d_bar, p + c, load(d_bar, p + c) + (rest_k * k_bar - rest_theta * theta_bar))
            else:
                store(planes, out + c, load_support(xs, p + c) * s * _kappa1(u, t, root))
                store(planes, out + half + c, theta * slope)
                store(saved, into + c, slope)
                store(saved, into + area + c, rest_k)
                store(saved, into + 2 * area + c, m)
                store(saved, into + 3 * area + c, rest_theta)


@njit(**_INNER)
def _conv_back(
    planes: Any, source: int, target: int, half: int, h: int, w: int, sw: float, ta: float, ntk: bool,
    relu: bool, saved: Any, slot: int, d_bar: Any, i: int, width: int,
) -> None:  # fmt: skip
    """Cotangents of K and Θ after a convolution to those before it, σ_w² box K̄ + a box Θ̄ and σ_w² box Θ̄.

    Where a `relu` comes before it these go on to the cotangents before that, from what it saved; adds d̄/r to `d_bar`.
    """
    _apart()
    row, area, ninth, ta = w + 2, h * w, sw / 9.0, ta / 9.0
    _clear_border(planes, target, h, w)
    if ntk:
        _clear_border(planes, target + half, h, w)
    for r in range(h):
        at, out, p, into = source + r * row, target + (r + 1) * row + 1, i + r * width, slot + r * w
        t0, t1 = _column(planes, at, row), _column(planes, at + 1, row)
        if ntk:
            v0, v1 = _column(planes, at + half, row), _column(planes, at + half + 1, row)
            for c in range(w):
                t2, v2 = _column(planes, at + c + 2, row), _column(planes, at + half + c + 2, row)
                box = v0 + v1 + v2
                k, theta = (t0 + t1 + t2) * ninth + box * ta, box * ninth
                t0, t1, v0, v1 = t1, t2, v1, v2
                if relu:
                    slope = load(saved, into + c)
                    rest = load(saved, into + area + c) * k - load(saved, into + 3 * area + c) * theta
                    store(d_bar, p + c, load(d_bar, p + c) + rest)
                    k, theta = slope * k + load(saved, into + 2 * area + c) * theta, slope * theta
                store(planes, out + c, k)
                store(planes, out + half + c, theta)
        else:
            for c in range(w):
                t2 = _column(planes, at + c + 2, row)
                k = (t0 + t1 + t2) * ninth
                t0, t1 = t1, t2
                if relu:
                    store(d_bar, p + c, load(d_bar, p + c) + load(saved, into + area + c) * k)
                    k = load(saved, into + c) * k
                store(planes, out + c, k)


@njit(**_INNER)
def _to_image(
    planes: Any, start: int, y: Any, x_bar: Any, h: int, w: int, i: int, j: int, width: int, pixels: int, ch: int
) -> None:
    """Add K̄[p] y[p + o] to x̄[p]."""
    _apart()
    for r in range(h):
        at, p, q = start + (r + 1) * (w + 2) + 1, i + r * width, j + r * width
        for c in range(w):
            k_bar = load(planes, at + c)
            for k in range(ch):
                at_x = k * pixels + p + c
                store(x_bar, at_x, load(x_bar, at_x) + k_bar * load(y, k * pixels + q + c))


# --- pools and levels -------------------------------------------------------------------------------------------------
# `level` is a row of the plan: height, width, offset radii in y and x, first convolution, their number, and where the
# bases of its planes begin. `conv` has a row for each convolution: whether a ReLU follows, and where its maps begin.


@njit(inline="always")
def _corner(offset: int, a: int, n: int, pooled: int, radius: int) -> Any:
    """Pixels 2q + a of a plane at `offset` pool into offset (a + offset)//2: that offset and the range of q."""
    to = (a + offset) >> 1
    first = (max(0, -offset) - a + 1) >> 1
    last = min((min(n, n - offset) - 1 - a) >> 1, pooled - 1 - max(0, to))
    if to < -radius or to > radius:
        last = first - 1
    return to, max(first, -to, 0), last


@njit(**_INNER)
def _pool(
    planes: Any, start: int, stored: Any, shift: int, oy: int, ox: int, level: Any, above_: Any, bases: Any, back: bool
) -> None:
    """Add a plane into the planes of the next level it pools into; with `back`, gather its cotangent from theirs."""
    _apart()
    height, width, x0, y0 = level[0], level[1], max(0, -ox), max(0, -oy)
    row = width - abs(ox) + 2
    for a in range(2):
        to_y, y_first, y_last = _corner(oy, a, height, above_[0], above_[2])
        for b in range(2):
            to_x, x_first, x_last = _corner(ox, b, width, above_[1], above_[3])
            if y_last < y_first or x_last < x_first:
                continue
            base = shift + bases[above_[6] + (to_y + above_[2]) * (2 * above_[3] + 1) + to_x + above_[3]]
            pooled_row, y_start, x_start = above_[1] - abs(to_x), max(0, -to_y), max(0, -to_x)
            for q in range(y_first, y_last + 1):
                at = start + (2 * q + a - y0 + 1) * row + b - x0 + 1
                into = base + (q - y_start) * pooled_row - x_start
                if back:
                    for c in range(x_first, x_last + 1):
                        store(planes, at + 2 * c, load(stored, into + c))
                else:
                    for c in range(x_first, x_last + 1):
                        store(stored, into + c, load(stored, into + c) + load(planes, at + 2 * c))


@njit(**_INNER)
def _fill(buffer: Any, start: int, count: int, value: Any) -> None:
    _apart()
    for c in range(count):
        store(buffer, start + c, value)


@njit(**_INNER)
def _add_total(planes: Any, start: int, h: int, w: int, spare: Any, sums: Any) -> None:
    """Add the sum of a plane, lane by lane, to `sums` in double precision."""
    _apart()
    value = load(planes, start) * 0.0
    for r in range(h):
        at = start + (r + 1) * (w + 2) + 1
        for c in range(w):
            value = value + load(planes, at + c)
    store(spare, 0, value)
    for k in range(sums.size):
        sums[k] += spare[k]


class Plan(NamedTuple):
    """An architecture as data, so that one compilation serves them all."""

    levels: np.ndarray
    convs: np.ndarray
    tangents: np.ndarray
    bases: np.ndarray
    sizes: np.ndarray
    weight: float
    bias: float
    ntk: bool


class Sides(NamedTuple):
    """The support image over its channels, with ½s and r, and lanes of the targets, with s and r.

    A support image is one to all lanes (arrays of numbers), or one to each (arrays of vectors).
    """

    x: np.ndarray
    xs: np.ndarray
    xr: np.ndarray
    y: np.ndarray
    ys: np.ndarray
    yr: np.ndarray


class Work(NamedTuple):
    """Buffers of one thread.

    Three bordered planes of K and Θ; the planes between levels, and their cotangents; what layers saved; cotangents of
    the support image and of its variances; one vector to spare.
    """

    planes: np.ndarray
    stored: np.ndarray
    stored_bar: np.ndarray
    saved: np.ndarray
    x_bar: np.ndarray
    d_bar: np.ndarray
    spare: np.ndarray


@njit(**_INNER)
def _plane_forth(plan: Plan, n: int, oy: int, ox: int, sides: Sides, work: Work, back: int) -> int:
    """Load plane (o_y, o_x) of level `n` and take it through its layers; returns where the result begins.

    On the way `back` the layers save what their adjoints need and the last one turns round, from the cotangent of its
    result in the third bordered plane; what begins there is then the cotangent before its ReLU.
    """
    _apart()
    level, half, ntk, planes = plan.levels[n], plan.sizes[0], plan.ntk, work.planes
    width = level[1]
    h, w = level[0] - abs(oy), width - abs(ox)
    i, j = max(0, -oy) * width + max(0, -ox), max(0, oy) * width + max(0, ox)
    if n == 0:
        pixels = level[0] * width
        _inner_products(sides.x, sides.y, planes, h, w, i, j, width, pixels, plan.sizes[3] // pixels)
        if ntk:
            _fill(planes, half, (h + 2) * (w + 2), 0.0)
    else:
        base = plan.bases[level[6] + (oy + level[2]) * (2 * level[3] + 1) + ox + level[3]]
        _take(work.stored, base, planes, np.int64(0), h, w, 0.0625)
        if ntk:
            _take(work.stored, plan.sizes[1] + base, planes, half, h, w, 0.0625)
    source, target, slot, last = np.int64(0), 2 * half, np.int64(0), level[4] + level[5] - 1
    for c in range(level[4], last + 1):
        ta, tb, m = plan.tangents[c, 0], plan.tangents[c, 1], plan.convs[c, 1]
        mode = back * (TURN if c == last else SAVE)
        if not plan.convs[c, 0]:
            if mode == TURN:
                return 4 * half
            _box(planes, source, target, h, w, plan.weight / 9.0, plan.bias, np.int64(0))
            if ntk:
                _box(planes, source + half, target + half, h, w, plan.weight / 9.0, 0.0, np.int64(0))
                _box(planes, source, target + half, h, w, ta / 9.0, tb, np.int64(1))
        elif ntk:
            _conv_relu_ntk(
                planes, source, target, 4 * half, half, h, w, m + i, m + j, width, sides.xs, sides.xr, sides.ys,
                sides.yr, plan.weight, plan.bias, ta, tb, work.saved, slot, mode, work.d_bar,
            )  # fmt: skip
            slot += 4 * h * w
        else:
            _conv_relu_nngp(
                planes, source, target, 4 * half, h, w, m + i, m + j, width, sides.xs, sides.xr, sides.ys, sides.yr,
                plan.weight, plan.bias, work.saved, slot, mode, work.d_bar,
            )  # fmt: skip
            slot += 4 * h * w
        source, target = target, source
    return source


@njit(**_INNER)
def _plane_back(plan: Plan, n: int, oy: int, ox: int, source: int, sides: Sides, work: Work) -> None:
    """Pull the cotangent at `source`, as `_plane_forth` left it, back through level `n` to x̄ or the level below."""
    _apart()
    level, half, ntk, planes = plan.levels[n], plan.sizes[0], plan.ntk, work.planes
    width = level[1]
    h, w = level[0] - abs(oy), width - abs(ox)
    i, j = max(0, -oy) * width + max(0, -ox), max(0, oy) * width + max(0, ox)
    first, last = level[4], level[4] + level[5] - 1
    slot = np.int64(0)
    for c in range(first, last):
        slot += 4 * h * w * plan.convs[c, 0]
    target = 2 * half if source == 0 else source * 0
    for c in range(last, first - 1, -1):
        relu, m = c > first and plan.convs[c - 1, 0] == 1, i
        if relu:
            slot -= 4 * h * w
            m += plan.convs[c - 1, 1]
        _conv_back(
            planes, source, target, half, h, w, plan.weight, plan.tangents[c, 0], ntk,
            relu, work.saved, slot, work.d_bar, m, width,
        )  # fmt: skip
        source, target = target, source
    if n == 0:
        pixels = level[0] * width
        _to_image(planes, source, sides.y, work.x_bar, h, w, i, j, width, pixels, plan.sizes[3] // pixels)
    else:
        base = plan.bases[level[6] + (oy + level[2]) * (2 * level[3] + 1) + ox + level[3]]
        _put(planes, source, work.stored_bar, base, h, w, 0.0625)
        if ntk:
            _put(planes, source + half, work.stored_bar, plan.sizes[1] + base, h, w, 0.0625)


@njit(inline="always")
def _pool_forth(plan: Plan, n: int, oy: int, ox: int, work: Work, start: int) -> None:
    level, after = plan.levels[n], plan.levels[n + 1]
    _pool(work.planes, start, work.stored, np.int64(0), oy, ox, level, after, plan.bases, np.int64(0))
    if plan.ntk:
        _pool(
            work.planes,
            start + plan.sizes[0],
            work.stored,
            plan.sizes[1],
            oy,
            ox,
            level,
            after,
            plan.bases,
            np.int64(0),
        )


@njit(inline="always")
def _pool_back(plan: Plan, n: int, oy: int, ox: int, work: Work) -> None:
    """Gather the cotangent of a plane into the third bordered plane; what pools into nothing kept is 0."""
    level, after, half = plan.levels[n], plan.levels[n + 1], plan.sizes[0]
    h, w = level[0] - abs(oy), level[1] - abs(ox)
    even = level[0] % 2 == 0 and level[1] % 2 == 0
    covered = even and (abs(oy) + 1) >> 1 <= after[2] and (abs(ox) + 1) >> 1 <= after[3]
    for part in range(1 + plan.ntk):
        bar = (4 + part) * half
        if covered:
            _clear_border(work.planes, bar, h, w)
        else:
            _fill(work.planes, bar, (h + 2) * (w + 2), 0.0)
        _pool(work.planes, bar, work.stored_bar, part * plan.sizes[1], oy, ox, level, after, plan.bases, np.int64(1))


@njit(inline="always")
def _levels_forth(plan: Plan, count: int, sides: Sides, work: Work, sums: Any) -> None:
    """Take a block of pairs through the first `count` levels; the planes of the last level are summed into `sums`."""
    _fill(work.stored, np.int64(0), plan.sizes[1] * (2 if plan.ntk else 1), 0.0)
    for n in range(count):
        h, w, ry, rx = plan.levels[n, 0], plan.levels[n, 1], plan.levels[n, 2], plan.levels[n, 3]
        for oy in range(-ry, ry + 1):
            for ox in range(-rx, rx + 1):
                start = _plane_forth(plan, n, oy, ox, sides, work, np.int64(0))
                if n + 1 < plan.levels.shape[0]:
                    _pool_forth(plan, n, oy, ox, work, start)
                    continue
                _add_total(work.planes, start, h - abs(oy), w - abs(ox), work.spare, sums[0])
                if plan.ntk:
                    _add_total(work.planes, start + plan.sizes[0], h - abs(oy), w - abs(ox), work.spare, sums[1])


@njit(inline="always")
def _levels_back(plan: Plan, sides: Sides, work: Work, k_bar: Any, theta_bar: Any) -> None:
    """Pull cotangents of the two sums, one a lane, back through all levels; added to `work.x_bar`, `work.d_bar`."""
    last, half = plan.levels.shape[0] - 1, plan.sizes[0]
    for n in range(last, -1, -1):
        h, w, ry, rx = plan.levels[n, 0], plan.levels[n, 1], plan.levels[n, 2], plan.levels[n, 3]
        for oy in range(-ry, ry + 1):
            for ox in range(-rx, rx + 1):
                if n < last:
                    _pool_back(plan, n, oy, ox, work)
                else:
                    area = (h - abs(oy) + 2) * (w - abs(ox) + 2)
                    _fill(work.planes, 4 * half, area, load(k_bar, 0))
                    _fill(work.planes, 5 * half, area, load(theta_bar, 0))
                    _clear_border(work.planes, 4 * half, h - abs(oy), w - abs(ox))
                    _clear_border(work.planes, 5 * half, h - abs(oy), w - abs(ox))
                start = 4 * half
                if plan.levels[n, 5]:
                    start = _plane_forth(plan, n, oy, ox, sides, work, np.int64(1))
                _plane_back(plan, n, oy, ox, start, sides, work)


# --- an image with itself: its own variances --------------------------------------------------------------------------
# At offset 0 the correlation is 1 and ReLU halves the variance, so that plane goes first on the way forth (the others
# need its variances) and last on the way back. The planes o and −o mirror each other, so the second argument's share of
# a derivative equals the first's.


@njit(inline="always")
def _own_forth(plan: Plan, sides: Sides, work: Work, d: Any) -> None:
    """Fill `d`, and ½s, s and r in `sides`, with the variances of a block of images at every ReLU."""
    _fill(work.stored, np.int64(0), plan.sizes[1], 0.0)
    planes, half, zero = work.planes, plan.sizes[0], np.int64(0)
    for n in range(plan.levels.shape[0]):
        h, w, ry, rx = plan.levels[n, 0], plan.levels[n, 1], plan.levels[n, 2], plan.levels[n, 3]
        _load_own(plan, n, sides, work)
        source, target = np.int64(0), 2 * half
        for c in range(plan.levels[n, 4], plan.levels[n, 4] + plan.levels[n, 5]):
            _box(planes, source, target, h, w, plan.weight / 9.0, plan.bias, np.int64(0))
            if plan.convs[c, 0]:
                _record(planes, target, h, w, plan.convs[c, 1], sides, d)
            source, target = target, source
        if n + 1 == plan.levels.shape[0]:
            break
        _pool_forth(plan, n, zero, zero, work, source)
        for oy in range(-ry, ry + 1):
            for ox in range(-rx, rx + 1):
                if oy != 0 or ox != 0:
                    start = _plane_forth(plan, n, oy, ox, sides, work, np.int64(0))
                    _pool_forth(plan, n, oy, ox, work, start)


@njit(inline="always")
def _load_own(plan: Plan, n: int, sides: Sides, work: Work) -> None:
    level = plan.levels[n]
    pixels = level[0] * level[1]
    if n == 0:
        channels = plan.sizes[3] // pixels
        _inner_products(
            sides.x, sides.y, work.planes, level[0], level[1], np.int64(0), np.int64(0), level[1], pixels, channels
        )
    else:
        base = plan.bases[level[6] + level[2] * (2 * level[3] + 1) + level[3]]
        _take(work.stored, base, work.planes, np.int64(0), level[0], level[1], 0.0625)


@njit(**_INNER)
def _record(planes: Any, start: int, h: int, w: int, m: int, sides: Sides, d: Any) -> None:
    """Record a map of variances, and halve the plane it stands in."""
    _apart()
    for r in range(h):
        at, p = start + (r + 1) * (w + 2) + 1, m + r * w
        for c in range(w):
            value = load(planes, at + c)
            root = sqrt(value)
            store(d, p + c, value)
            store(sides.xs, p + c, root * 0.5)
            store(sides.ys, p + c, root)
            inverse = _reciprocal(root)
            store(sides.xr, p + c, inverse)
            store(sides.yr, p + c, inverse)
            store(planes, at + c, value * 0.5)


@njit(inline="always")
def _own_back(plan: Plan, sides: Sides, work: Work, d_bar: Any) -> None:
    """Pull cotangents `d_bar` of the own variances back to the images: half of x̄ comes to stand in `work.x_bar`."""
    planes, half, last, zero = work.planes, plan.sizes[0], plan.levels.shape[0] - 1, np.int64(0)
    _fill(work.x_bar, np.int64(0), plan.sizes[3], 0.0)
    _fill(work.d_bar, np.int64(0), plan.sizes[4], 0.0)
    for n in range(last, -1, -1):
        h, w, ry, rx = plan.levels[n, 0], plan.levels[n, 1], plan.levels[n, 2], plan.levels[n, 3]
        if n < last:
            for oy in range(-ry, ry + 1):
                for ox in range(-rx, rx + 1):
                    if oy != 0 or ox != 0:
                        _pool_back(plan, n, oy, ox, work)
                        start = 4 * half
                        if plan.levels[n, 5]:
                            start = _plane_forth(plan, n, oy, ox, sides, work, np.int64(1))
                        _plane_back(plan, n, oy, ox, start, sides, work)
            _pool_back(plan, n, zero, zero, work)
        else:
            _fill(planes, 4 * half, (h + 2) * (w + 2), 0.0)
        source, target = 4 * half, 2 * half
        for c in range(plan.levels[n, 4] + plan.levels[n, 5] - 1, plan.levels[n, 4] - 1, -1):
            if plan.convs[c, 0]:
                _unrecord(planes, source, h, w, plan.convs[c, 1], sides, work.d_bar, d_bar)
            _box(planes, source, target, h, w, plan.weight / 9.0, 0.0, np.int64(0))
            source, target = target, source
        if n == 0:
            _to_image(planes, source, sides.y, work.x_bar, h, w, zero, zero, w, h * w, plan.sizes[3] // (h * w))
        else:
            base = plan.bases[plan.levels[n, 6] + ry * (2 * rx + 1) + rx]
            _put(planes, source, work.stored_bar, base, h, w, 0.0625)


@njit(**_INNER)
def _unrecord(planes: Any, start: int, h: int, w: int, m: int, sides: Sides, inner: Any, outer: Any) -> None:
    """The adjoint of `_record`, with what the other planes of the level ask of its variances."""
    _apart()
    for r in range(h):
        at, p = start + (r + 1) * (w + 2) + 1, m + r * w
        for c in range(w):
            asked = load(inner, p + c) * load_support(sides.xr, p + c) * 2.0 + load(outer, p + c)
            store(planes, at + c, load(planes, at + c) * 0.5 + asked)


# --- entry points: all cores, one share of the tasks each -------------------------------------------------------------


@njit(**_OPTIONS)
def _divide(plan: Plan, work: Any) -> Any:
    """Cut a thread's memory into `Work` and the six lanes of `Sides`."""
    lanes = VECTOR_BYTES // work.itemsize
    half, size, saved, image, maps = plan.sizes[0], plan.sizes[1], plan.sizes[2], plan.sizes[3], plan.sizes[4]
    cuts = np.zeros(14, np.int64)
    for n, count in enumerate(
        (6 * half, 2 * size, 2 * size, saved, image, maps, 1, image, maps, maps, image, maps, maps)
    ):
        cuts[n + 1] = cuts[n] + count * lanes
    buffers = Work(
        work[cuts[0] : cuts[1]], work[cuts[1] : cuts[2]], work[cuts[2] : cuts[3]], work[cuts[3] : cuts[4]],
        work[cuts[4] : cuts[5]], work[cuts[5] : cuts[6]], work[cuts[6] : cuts[7]],
    )  # fmt: skip
    sides = Sides(
        work[cuts[7] : cuts[8]].reshape((-1, lanes)), work[cuts[8] : cuts[9]].reshape((-1, lanes)),
        work[cuts[9] : cuts[10]].reshape((-1, lanes)),
        work[cuts[10] : cuts[11]], work[cuts[11] : cuts[12]], work[cuts[12] : cuts[13]],
    )  # fmt: skip
    return buffers, sides


@njit(**_INNER)
def _scaled(values: Any, lanes: Any, count: int, scale: float) -> None:
    _apart()
    for v in range(count):
        store(lanes, v, load(values, v) * scale)


@njit(inline="always")
def _set_support(plan: Plan, batch: Batch, j: int, sides: Sides) -> None:
    """Put the images of block `j` into the lanes of the support, each to be paired with itself."""
    channels = plan.sizes[3] // (plan.levels[0, 0] * plan.levels[0, 1])
    _scaled(batch.y[j], sides.x, plan.sizes[3], 1.0 / channels)
    _scaled(batch.ys[j], sides.xs, plan.sizes[4], 0.5)
    _scaled(batch.yr[j], sides.xr, plan.sizes[4], 1.0)


@njit(inline="always")
def _own(plan: Plan, batch: Batch, j: int, work: Work, own: Sides) -> None:
    """Own variances of the images of block `j`; where `batch.image_bar` has room, their cotangents pulled back."""
    channels = plan.sizes[3] // (plan.levels[0, 0] * plan.levels[0, 1])
    _scaled(batch.y[j], own.x, plan.sizes[3], 1.0 / channels)
    sides = Sides(own.x, own.xs, own.xr, batch.y[j], own.ys, own.yr)
    _own_forth(plan, sides, work, batch.maps[j])
    if batch.image_bar.size:
        _own_back(plan, sides, work, batch.maps_bar[j])
        _scaled(work.x_bar, batch.image_bar[j], plan.sizes[3], 2.0 / channels)


@njit(inline="always")
def _add_bars(plan: Plan, batch: Batch, row: int, work: Work, sides: Sides, summed: bool) -> None:
    """Add a block's cotangents to a row of `batch`, summed over the lanes or lane by lane."""
    channels = plan.sizes[3] // (plan.levels[0, 0] * plan.levels[0, 1])
    for v in range(plan.sizes[4]):
        store(work.d_bar, v, load(work.d_bar, v) * load_support(sides.xr, v))
    if summed:
        for v in range(plan.sizes[3]):
            batch.x_bar[row, v] += total(load(work.x_bar, v)) * (1.0 / channels)
        for v in range(plan.sizes[4]):
            batch.d_bar[row, v] += total(load(work.d_bar, v))
    else:
        for v in range(batch.x_bar.shape[1]):
            batch.x_bar[row, v] += work.x_bar[v] / channels
        for v in range(batch.d_bar.shape[1]):
            batch.d_bar[row, v] += work.d_bar[v]


class Batch(NamedTuple):
    """What tasks read and write; an array that a kind of task has no use for is empty.

    Support images by rows, over their channels, with ½s and r; targets by blocks of lanes with s and r; sums of K and Θ
    (2, n, targets), their cotangents; rows for cotangents of support images and variances; blocks of own variances,
    their cotangents, and those of the images. `stored` has, for the first blocks, the planes between levels of each
    support image: written on the way forth, so that the way back need not walk the levels below again.
    """

    x: np.ndarray
    xs: np.ndarray
    xr: np.ndarray
    y: np.ndarray
    ys: np.ndarray
    yr: np.ndarray
    sums: np.ndarray
    bars: np.ndarray
    x_bar: np.ndarray
    d_bar: np.ndarray
    maps: np.ndarray
    maps_bar: np.ndarray
    image_bar: np.ndarray
    stored: np.ndarray


OWN, FORTH, BACK = 0, 1, 2

# So many blocks of targets share the cost of adding up a support image's cotangents in double precision.
TOGETHER = 2


@njit(**_OPTIONS)
def run(plan: Plan, batch: Batch, task: Any, memory: Any) -> None:
    """Do one task (kind, i, i_end, j, j_end, share, shares) in a thread's own memory.

    OWN: the variances of the blocks from j to j_end. FORTH: K and Θ, summed as the read-in does, of the support images
    from i to i_end against these blocks. BACK: the pullback of these sums, added to row i·shares + share of the
    cotangents. Where i < 0 each image of the one block j is paired with itself; its cotangents are then the first
    argument's share, lane by lane, in row j.
    """
    work, own = _divide(plan, memory)
    kind, i, i_end, j, j_end = task[0], task[1], task[2], task[3], task[4]
    sums = np.zeros((2, VECTOR_BYTES // memory.itemsize))
    if kind == OWN:
        for block in range(j, j_end):
            _own(plan, batch, block, work, own)
    elif i < 0:
        _set_support(plan, batch, j, own)
        sides = Sides(own.x, own.xs, own.xr, batch.y[j], batch.ys[j], batch.yr[j])
        if kind == FORTH:
            _forth(plan, batch, np.int64(0), j, sides, work, sums)
        else:
            _back(plan, batch, np.int64(0), j, j + 1, sides, work, sums)
            _add_bars(plan, batch, j, work, sides, False)
    elif kind == FORTH:
        for block in range(j, j_end):  # a block stays in cache while support images pass
            for n in range(i, i_end):
                sides = Sides(batch.x[n], batch.xs[n], batch.xr[n], batch.y[block], batch.ys[block], batch.yr[block])
                _forth(plan, batch, n, block, sides, work, sums)
    else:
        for first in range(j, j_end, TOGETHER):
            for n in range(i, i_end):
                sides = Sides(batch.x[n], batch.xs[n], batch.xr[n], batch.y[first], batch.ys[first], batch.yr[first])
                _back(plan, batch, n, first, min(first + TOGETHER, j_end), sides, work, sums)
                _add_bars(plan, batch, n * task[6] + task[5], work, sides, True)


@njit(inline="always")
def _storing(batch: Batch, n: int, block: int, work: Work) -> Work:
    """The thread's buffers, with the planes between levels where they are kept."""
    if block >= batch.stored.shape[0]:
        return work
    stored = batch.stored[block, n]
    return Work(work.planes, stored, work.stored_bar, work.saved, work.x_bar, work.d_bar, work.spare)


@njit(**_OPTIONS)
def _forth(plan: Plan, batch: Batch, n: int, block: int, sides: Sides, work: Work, sums: Any) -> None:
    """K and Θ of support image `n` with a block, summed as the read-in does."""
    lanes = sums.shape[1]
    sums[:] = 0.0
    _levels_forth(plan, plan.levels.shape[0], sides, _storing(batch, n, block, work), sums)
    for k in range(lanes):
        batch.sums[0, n, block * lanes + k] = sums[0, k]
        batch.sums[1, n, block * lanes + k] = sums[1, k]


@njit(**_OPTIONS)
def _back(plan: Plan, batch: Batch, n: int, first: int, last: int, sides: Sides, work: Work, sums: Any) -> None:
    """The pullback of the sums of support image `n` with blocks, left in `work`."""
    lanes = sums.shape[1]
    _fill(work.x_bar, np.int64(0), plan.sizes[3], 0.0)
    _fill(work.d_bar, np.int64(0), plan.sizes[4], 0.0)
    for j in range(first, last):
        pair = Sides(sides.x, sides.xs, sides.xr, batch.y[j], batch.ys[j], batch.yr[j])
        bars = batch.bars[:, n, j * lanes : (j + 1) * lanes]
        here = _storing(batch, n, j, work)
        if j >= batch.stored.shape[0]:
            _levels_forth(plan, plan.levels.shape[0] - 1, pair, here, sums)
        _levels_back(plan, pair, here, bars[0], bars[1])


@njit(**_OPTIONS)
def pack(images: Any, own: Any, y: Any, s: Any, r: Any, block: int) -> None:
    """Put a block of images (n, pixels, ch) into lanes, channels first, with √d and 1/√d (0 where d is) of `own`.

    The last block is filled up with the last image.
    """
    lanes = VECTOR_BYTES // y.itemsize
    n, pixels, channels = images.shape
    maps, few = s.size // lanes, 32
    for start in range(0, max(pixels, maps), few):  # by parts that stay in cache while image after image is written
        for k in range(lanes):
            image, variances = images[min(block * lanes + k, n - 1)], own[min(block * lanes + k, n - 1)]
            for p in range(start, min(start + few, pixels)):
                for c in range(channels):
                    y[(c * pixels + p) * lanes + k] = image[p, c]
            for v in range(start, min(start + few, maps)):
                s[v * lanes + k] = variances[v]
    for v in range(maps):
        root = sqrt(load(s, v))
        store(s, v, root)
        store(r, v, _reciprocal(root))


@njit(**_OPTIONS)
def hashes(words: Any, keys: Any, out: Any) -> None:
    """Multilinear hashes of images (n, h, w, words a pixel) of 32-bit words: two, then two of the mirrored image."""
    n_images, height, width, depth = words.shape
    for n in range(n_images):
        for k in range(2):
            direct, mirrored = np.uint64(0), np.uint64(0)
            for y in range(height):
                for x in range(width):
                    for c in range(depth):
                        word = np.uint64(words[n, y, x, c])
                        direct += word * keys[k, y, x, c]
                        mirrored += word * keys[k, y, width - 1 - x, c]
            out[n, k], out[n, k + 2] = direct, mirrored
