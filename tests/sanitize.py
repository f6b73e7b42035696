"""Run every kernel family under compute-sanitizer: ``make sanitize``, or ``python tests/sanitize.py [part ...]``.

Each part is a process of its own that runs a few small cases of a family and holds their results against the exact
reference; memcheck finds accesses out of bounds, racecheck shared memory that two threads use without meeting between.
Parts run side by side. Needs a GPU and ``compute-sanitizer`` (CUDA toolkit); exits with 1 if anything is found.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

import kernels_numba
import reference
from kernels_numba import backward_pass, linear_stream
from kernels_numba.linear_product import Choice
from monarch import Plan, SparsityPattern

TOOLS = ("memcheck", "racecheck")
CLEAN = re.compile(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards")
RAN = "all results are right"
ON_CHIP = 512
"""Longer transforms get outer stages here, so that small cases have them."""


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def convolve(*plans: Plan, dtype: str = "fp16", products: str | None = None) -> None:
    """Whole, or half a circle where that is all, and causal of odd length with gates; one sequence is alone."""
    kind = {"fp16": np.float16, "fp32": np.float32, "complex64": np.complex64}[dtype]
    for plan in plans:
        halved = plan.packing == "right-angle"
        whole = ("causal", plan.n // 2, False) if halved else ("circular", plan.n, False)
        for mode, length, gated in (whole, ("causal", plan.n // 2 - 3, True)):
            turned = 1 + 1j if dtype == "complex64" else 1
            u, k = (turned * _random(3, 2, length)).astype(kind), _random(2, length, seed=1) / length**0.5
            names = ("pregate", "postgate") if gated else ()
            gates = {name: (turned * _random(*u.shape, seed=2)).astype(kind) for name in names}
            y = kernels_numba.fftconv(u, k, mode=mode, plan=plan, products=products, **gates)
            exact = reference.fftconv(u, k, mode=mode, **gates)
            if "fp16" in (dtype, products):
                pairs, roundings = (
                    plan.packing == "pair",
                    len(gates) if products is None else 1 + 2 * len(gates),
                )
                found = reference.relative_error(y, exact, u, k, pairs=pairs, **gates).overall
                bound = 1.3 * reference.fftconv_bound(plan.order, "fp16", gates=roundings)
            else:
                found, bound = np.linalg.norm(y - exact) / np.linalg.norm(exact), 1e-6
            assert found <= bound, f"{plan} {mode}: error {found}, bound {bound}"


def gate_twice(*plans: Plan, dtype: str = "fp16") -> None:
    """One convolution under two output gates, of odd length, beside the two runs that it stands for."""
    for plan in plans:
        for length in (plan.n, plan.n // 2 - 3):
            u, before, first, second = (
                _there(_random(3, 2, length, seed=s).astype(np.float16 if dtype == "fp16" else np.float32))
                for s in range(4)
            )
            k = _random(2, length, seed=4) / length**0.5
            mode = "circular" if length == plan.n else "causal"
            spectrum = kernels_numba.prepare_filter(k, length=length, mode=mode, dtype=dtype, plan=plan)
            run = kernels_numba.FFTConv(spectrum, batch=3)
            both = run.twice(u, first, second, pregate=before)
            for y, gate in zip(both, (first, second), strict=True):
                right = run(u, pregate=before, postgate=gate).host()
                assert np.array_equal(y.host(), right) and np.isfinite(right.astype(float)).all()


def transform_filters() -> None:
    """Filters of several lengths and types, whose spectra are made on the GPU."""
    cases = [(n, n, "circular", "fp16") for n in (256, 768, 1024, 2048, 4096, 65536)]
    cases += [(4096, 4096, "circular", "fp32")]
    cases += [(n, n // 2, "causal", "fp16") for n in (1024, 1536, 24576)]  # turned, some in one launch
    for n, length, mode, dtype in cases:
        for kind in (np.float16, np.float32, np.float64):
            k = (_random(3, length) / n**0.5).astype(kind)
            spectrum = kernels_numba.prepare_filter(k, length=length, mode=mode, dtype=dtype)
            words, _ = spectrum.on_host()
            assert np.isfinite(words.view(np.float32 if dtype == "fp32" else np.float16).astype(float)).all()


def convolve_from_taps() -> None:
    """Convolutions that transform their filters, with and without gates, and the adjoint."""
    from kernels_numba.call_filter import Untransformed, prepare_for_call

    for number, n in enumerate((256, 512, 768, 256, 384, 512, 768)):
        mode, circle = ("circular", n) if number < 3 else ("causal", 2 * n)
        for batch, taps, gated in ((3, n, False), (1, n // 2, True)):
            u, k, gate = _random(batch, 5, n), _random(5, taps, seed=1) / n**0.5, _random(batch, 5, n, seed=2)
            k, u, gate = k.astype(np.float32), u.astype(np.float16), gate.astype(np.float16)
            gates = {"pregate": gate, "postgate": gate} if gated else {}
            spectrum = prepare_for_call(_there(k), length=n, mode=mode, adjoint=gated)
            y = kernels_numba.FFTConv(spectrum, batch=batch)(u, **gates)
            if not gated:  # with gates there may be no room, and for shorter filters another length
                assert isinstance(spectrum, Untransformed) and "transformed" not in vars(spectrum)
            bins = np.fft.rfft(k.astype(float), n=circle)
            x = u.astype(float) * (gate if gated else 1)
            exact = np.fft.irfft(np.fft.rfft(x, n=circle) * (bins.conj() if gated else bins), n=circle)
            exact = exact[..., :n] * (gate if gated else 1)
            assert np.linalg.norm(y - exact) <= 2e-3 * np.linalg.norm(exact)


def differentiate(*plans: Plan, dtype: str = "fp16", zeros: bool = False) -> None:
    """The filter's gradient, whole and causal of odd length with gates, and both ways back to taps."""
    from kernels_numba.filter_sums import FilterGradient

    kind = np.float32 if dtype == "fp32" else np.float16
    for plan in plans:
        whole = ("causal", plan.n // 2) if plan.packing == "right-angle" else ("circular", plan.n)
        for mode, length, gated in ((*whole, False), ("causal", plan.n // 2 - 3, True)):
            u, dy = (_random(3, 2, length, seed=s).astype(kind) for s in (0, 1))
            names = ("pregate", "postgate") if gated else ()
            gates = {name: _random(*u.shape, seed=2).astype(kind) for name in names}
            if zeros:
                pattern = SparsityPattern.middles(plan, (plan.factors[0] // 2, *[0] * (plan.order - 1)))
            kept = pattern.bins(plan) if zeros else None
            gradient = FilterGradient(u.shape, taps=length, mode=mode, dtype=dtype, plan=plan, kept=kept)
            there = [_there(x) for x in (u, dy, *gates.values())]
            adapter = kernels_numba.arrays.adapter_of(there[0], "u")
            dk = gradient.launch(*there[:2], *(there[2:] or (None, None)), adapter=adapter, index=0).host()
            taps = np.zeros((2, length))
            if zeros:
                exact = reference.sparse_fftconv_gradients(
                    dy, u, taps, pattern, plan=plan, mode=mode, **gates
                ).k
            else:
                exact = reference.fftconv_gradients(dy, u, taps, mode=mode, **gates).k
            found = reference.filter_gradient_error(dk, exact, dy, u, pairs=True, **gates).overall
            bound = reference.filter_gradient_bound(3, "fp16", gates=2) if dtype == "fp16" else 1e-6
            assert found <= 1.3 * bound, f"{plan} {mode}: error {found}, bound {bound}"


def differentiate_all(*plans: Plan) -> None:
    """All gradients at once, without gates, and with both, of an odd length and a sequence alone."""
    for plan in plans:
        whole = ("causal", plan.n // 2) if plan.packing == "right-angle" else ("circular", plan.n)
        for mode, length, gated in ((*whole, False), ("causal", plan.n // 2 - 3, True)):
            u, dy, before, after = (_random(3, 2, length, seed=s).astype(np.float16) for s in range(4))
            k = _random(2, length, seed=4) / length**0.5
            gates = {"pregate": before, "postgate": after} if gated else {}
            assert backward_pass.family_of(plan) is not None
            found = kernels_numba.fftconv_gradients(u, k, dy, mode=mode, plan=plan, **gates)
            exact = reference.fftconv_gradients(dy, u, k, mode=mode, **gates)
            for name in ("u", "k", *gates):
                got, right = (np.asarray(getattr(x, name), float) for x in (found, exact))
                error = np.linalg.norm(got - right) / np.linalg.norm(right)
                bound = 2 * reference.fftconv_bound(plan.order, "fp16", gates=2)
                assert error <= bound, f"{plan} {mode}, {name}: error {error}, bound {bound}"


def train() -> None:
    """Short filters of any length with their gradients, and the gradient of a long filter by rows, also in fp32."""
    from kernels_numba.long_gradient import LongFilterGradient, choose
    from kernels_numba.short_conv import short_conv, short_conv_gradients

    for length in (4104, 250, 37):
        x, dy = (_random(3, 2, length, seed=s).astype(np.float16) for s in (0, 1))
        w = _random(2, 3, seed=2).astype(np.float32)
        there = [_there(v) for v in (dy, x, w)]
        y, (dx, dw) = short_conv(*there[1:]).host(), short_conv_gradients(*there)
        padded, after = (np.pad(v.astype(float), ((0, 0), (0, 0), p)) for v, p in ((x, (2, 0)), (dy, (0, 2))))
        terms = [padded[..., t : t + length] for t in range(3)]
        wanted = sum(w[:, t, None] * terms[t] for t in range(3))
        back = sum(w[:, t, None] * after[..., 2 - t :][..., :length] for t in range(3))
        sums = np.stack([(dy.astype(float) * term).sum((0, 2)) for term in terms], axis=1)
        for found, exact in ((y, wanted), (dx.host(), back), (dw.host(), sums)):
            assert np.linalg.norm(found - exact) <= 1e-3 * np.linalg.norm(exact)
    shape = (3, 1, 40000)
    for workspace, dtype in ((2**28, "fp16"), (1, "fp16"), (2**28, "fp32")):
        kind = np.float16 if dtype == "fp16" else np.float32
        u, dy = (_random(*shape, seed=s).astype(kind) for s in (0, 1))
        gates = {name: _random(*shape, seed=2).astype(kind) for name in ("pregate", "postgate")}
        split = choose("causal", shape[2], shape[2], dtype, dtype, 227 * 1024)
        assert split is not None
        exact = reference.fftconv_gradients(dy, u, np.zeros((1, shape[2])), mode="causal", **gates).k
        gradient = LongFilterGradient(
            shape, taps=shape[2], mode="causal", dtype=dtype, split=split, workspace=workspace
        )
        there = [_there(x) for x in (u, dy, *gates.values())]
        adapter = kernels_numba.arrays.adapter_of(there[0], "u")
        dk = gradient.launch(*there, adapter=adapter, index=0).host()
        found = reference.filter_gradient_error(dk, exact, dy, u, pairs=True, **gates).overall
        order, bound = len(split.plan.factors), reference.filter_gradient_bound
        assert found <= (1e-6 if dtype == "fp32" else 1.3 * bound(order, "fp16", gates=2))


def _there(x: np.ndarray) -> object:
    return kernels_numba.launch.DeviceBuffer.of(x, 0)


def attend() -> None:
    """Groups of one and of eight, one token and several, splits as a cluster and not, and rows that fall back."""
    for heads, tokens, splits, scale in ((4, 1, 3, 1.0), (32, 1, 2, 40.0), (8, 4, 1, 1.0), (8, 3, 11, 1.0)):
        q = (scale * _random(2, tokens, heads, 64)).astype(np.float16)
        k, v = (_random(2, 203, 4, 64, seed=s).astype(np.float16) for s in (1, 2))
        y = kernels_numba.decode_attention(q, k, v, phi=0.0, bounds=(-10.0, 10.0), splits=splits)
        exact = reference.decode_attention(q, k, v, variant="sync")
        assert np.linalg.norm(y - exact) <= 2e-3 * np.linalg.norm(exact), (heads, tokens, splits)


def normalise() -> None:
    """Softmax of short and long rows, in range and out of it."""
    for n, scale in ((37, 1.0), (5000, 1.0), (300, 20.0)):
        x = (scale * _random(9, n)).astype(np.float16)
        for scheme in ({"phi": 0.0, "bounds": (-8.0, 8.0)}, {"variant": "sync"}):
            y = kernels_numba.softmax(x, **scheme)
            assert np.abs(y - reference.softmax(x, variant="sync")).max() <= 1e-3, (n, scheme)


def multiply(impl: str, most: int) -> None:
    """Linear layers of up to ``most`` rows, with remainders everywhere and without."""
    for m, n, k in ((3, 130, 263), (most, 256, 512), (most, 201, 1024)):
        x, w = _random(m, k).astype(np.float16), _random(n, k, seed=1).astype(np.float16)
        y = kernels_numba.linear(x, w, impl=impl)
        exact = reference.linear(x, w)
        assert np.linalg.norm(y - exact) <= 1e-3 * np.linalg.norm(exact), (impl, m, n, k)


def multiply_by_engine() -> None:
    """Linear layers on warpgroups: operands by the copy engine, blocks that split K, rows that begin within a word."""
    if kernels_numba.device().capability != linear_stream.CAPABILITY:
        return
    for m, n, k, options in (
        (64, 301, 520, {"stream": 1, "groups": 1, "columns": 64, "pitch": 62, "stages": 5, "shares": 3}),
        (130, 301, 520, {"stream": 1, "groups": 2, "columns": 96, "stages": 4, "split": 3}),
        (33, 300, 511, {"groups": 1, "columns": 64, "turned": 1, "stages": 4, "split": 2, "joined": 1}),
    ):
        x, w = _random(m, k).astype(np.float16), _random(n, k, seed=1).astype(np.float16)
        y = kernels_numba.Linear(m, n, k, dtype="fp16", choice=Choice.of("full", **options))(x, w)
        exact = reference.linear(x, w)
        assert np.linalg.norm(y - exact) <= 1e-3 * np.linalg.norm(exact), (options, m, n, k)


def convolve_images(dtype: str, *layers: dict) -> None:
    """All passes of convolution layers: ``size`` of x, ``outputs``, ``taps``, ``tile``, and what `conv2d` takes; in one
    go and, as far as ``memory`` asks for it, in groups of images; and both gradients with spectra kept."""
    kind = {"fp16": np.float16, "fp32": np.float32}[dtype]
    for given in layers:
        layer = dict(given)
        size, taps, memory = layer.pop("size"), layer.pop("taps", (5, 3)), layer.pop("memory", None)
        outputs = layer.pop("outputs", 70)
        way = {"tile": layer.pop("tile", None), "impl": "fft"}
        groups = layer.get("groups", 1)
        x = _random(*size).astype(kind)
        w = _random(outputs, size[1] // groups, *taps, seed=1).astype(kind)
        held = {"dtype": dtype, "groups": groups, "terms": 4096}
        exact = reference.conv2d(x, w, **layer)
        dy = _random(*exact.shape, seed=2).astype(kind)
        keep = kernels_numba.Conv2dSpectra()
        kernels_numba.conv2d(x, w, keep=keep, **way, **layer)
        both = kernels_numba.conv2d_gradients(dy, x, w, keep=keep, **layer)
        exact_gx = reference.conv2d_input_gradient(dy, w, size=size[2:], **layer)
        exact_gw = reference.conv2d_weight_gradient(dy, x, size=taps, **layer)
        reference.check_conv2d(both[0], exact_gx, dy, w, which="input_gradient", **held)
        reference.check_conv2d(both[1], exact_gw, dy, x, which="weight_gradient", **held)
        for limit in {None, memory}:
            y = kernels_numba.conv2d(x, w, memory=limit, **way, **layer)
            reference.check_conv2d(y, exact, x, w, which="forward", **held)
            settings = {"impl": "fft", "memory": limit, **layer}
            gx = kernels_numba.conv2d_input_gradient(dy, w, input_size=size[2:], **settings)
            reference.check_conv2d(gx, exact_gx, dy, w, which="input_gradient", **held)
            gw = kernels_numba.conv2d_weight_gradient(x, dy, kernel_size=taps, **settings)
            reference.check_conv2d(gw, exact_gw, dy, x, which="weight_gradient", **held)


LAYERS: tuple[dict, ...] = (  # whole maps and tiles, groups, strides, dilation, channels of any number
    {"size": (3, 6, 13, 15), "tile": (16, 16), "padding": 2, "memory": 1 << 20},
    {"size": (2, 35, 40, 50), "tile": (32, 48), "stride": (2, 1), "groups": 5},
    {"size": (1, 4, 60, 70), "tile": (64, 64), "dilation": 3},
    {"size": (5, 40, 20, 24), "outputs": 40, "groups": 40, "memory": 1 << 20},
)
LARGE: tuple[dict, ...] = ({"size": (2, 3, 20, 80), "taps": (3, 66), "padding": (1, 2)},)


def convolve_long(*plans: Plan, dtype: str = "fp16", zeros: bool = False) -> None:
    """Outer stages around rows of 256 points: as `convolve`, in groups of one pair of one channel."""
    kind = {"fp16": np.float16, "fp32": np.float32}[dtype]
    for plan in plans:
        for mode, length, gated in (("circular", plan.n, False), ("causal", plan.n // 2 - 3, True)):
            u, k = _random(3, 2, length).astype(kind), _random(2, length, seed=1) / length**0.5
            names = ("pregate", "postgate") if gated else ()
            gates = {name: _random(*u.shape, seed=2).astype(kind) for name in names}
            middles = (plan.factors[0] // 2,) + (0,) * (plan.order - 1)
            pattern = SparsityPattern.middles(plan, middles) if zeros else None
            spectrum = kernels_numba.prepare_filter(
                k, length=length, mode=mode, dtype=dtype, plan=plan, on_chip=ON_CHIP, pattern=pattern
            )
            y = kernels_numba.FFTConv(spectrum, batch=3, workspace=16 * plan.n)(u, **gates)
            if pattern is not None:
                v = u * gates["pregate"] if gated else u
                exact = reference.sparse_fftconv(v, k, pattern, plan=plan, mode=mode)
                exact = exact * gates["postgate"] if gated else exact
            else:
                exact = reference.fftconv(u, k, mode=mode, **gates)
            if dtype == "fp16":
                found = reference.relative_error(y, exact, u, k, pairs=True, **gates).overall
                bound = 1.3 * reference.fftconv_bound(plan.order, dtype, gates=len(gates))
            else:
                found, bound = np.linalg.norm(y - exact) / np.linalg.norm(exact), 1e-6
            assert found <= bound, f"{plan} {mode}: error {found}, bound {bound}"


def leave_out_zeros(*plans: Plan) -> None:
    """Spectra with zeros that one kernel leaves out, in three sequences; of order 4 behind outer stages too."""
    for plan in plans:
        last = 16 if plan.factors[-1] == 32 else 0
        zeros = (plan.factors[0] // 2, *(4,) * (plan.order > 2), *(0,) * (plan.order - 3), last)
        pattern = SparsityPattern.middles(plan, zeros)
        u, k = _random(3, 2, plan.n).astype(np.float16), _random(2, plan.n, seed=1) / plan.n**0.5
        prepared = kernels_numba.prepare_filter(k, length=plan.n, plan=plan, pattern=pattern)
        assert prepared.marks or prepared.axes
        y = kernels_numba.sparse_fftconv(u, k, pattern, plan=plan)
        exact = reference.sparse_fftconv(u, k, pattern, plan=plan)
        found = reference.relative_error(y, exact, u, k, pairs=True).overall
        assert found <= 1.3 * reference.fftconv_bound(plan.order, "fp16"), (plan, found)


def convolve_in_chunks() -> None:
    """Streams: chunks shorter and longer than a tile, of odd length, with gates and without; and windows."""
    for gated in (False, True):
        u, k = _random(2, 3, 9001).astype(np.float16), _random(3, 700, seed=1) / 700**0.5
        names = ("pregate", "postgate") if gated else ()
        gates = {name: _random(*u.shape, seed=2).astype(np.float16) for name in names}
        stream = kernels_numba.FFTConvStream(k, (2, 3), tile=2048)
        y = np.concatenate(
            [
                stream(
                    np.ascontiguousarray(u[..., a:b]),
                    **{name: np.ascontiguousarray(x[..., a:b]) for name, x in gates.items()},
                )
                for a, b in ((0, 3), (3, 700), (700, 9001))
            ],
            axis=-1,
        )
        exact = reference.fftconv(u, k, mode="causal", **gates)
        found = reference.relative_error(y, exact, u, k, **gates).overall
        assert found <= 1.3 * reference.fftconv_bound(3, "fp16", gates=len(gates)), found


def _plans(*lists: tuple[int, ...], packing: str = "pair") -> tuple[Plan, ...]:
    return tuple(Plan.of(f, packing=packing) for f in lists)


TURNED = ((8, 16, 16), (16, 16, 16), (24, 16, 16))
PARTS: dict[str, Callable[[], None]] = {
    "warp": partial(convolve, *_plans((16, 16), (32, 32), (48, 32))),
    "group": partial(
        convolve, *_plans((64, 32), (64, 64), (64, 128)), *_plans((64, 32), packing="right-angle")
    ),
    "block": partial(convolve, *_plans((8, 16, 16), (16, 16, 16), (16, 16, 32))),
    "block-large": partial(convolve, *_plans((32, 32, 32), (48, 16, 16))),
    "block-half": partial(convolve, *_plans((16, 16, 16), (32, 32, 32), packing="half")),
    "deep": partial(convolve, *_plans((16, 8, 16, 16), (8, 8, 16, 16))),
    "deep-half": partial(convolve, *_plans((16, 8, 16, 16), (8, 8, 16, 16), packing="half")),
    "right-angle": partial(convolve, *_plans((16, 32), (24, 16), (48, 16), *TURNED, packing="right-angle")),
    "right-angle-large": partial(
        convolve, *_plans((16, 32, 16), (24, 32, 16), (16, 8, 16, 16), packing="right-angle")
    ),
    "any": partial(convolve, *_plans((48, 48), (208, 16), (64, 48), (16, 48, 16))),
    "any-first": partial(convolve, *_plans((17, 16, 16), (5, 16, 32), (272, 16))),
    "any-half": partial(convolve, *_plans((80, 48), (112, 16, 16), (9, 16, 16), packing="half")),
    "any-complex": partial(
        convolve,
        *(kernels_numba.families.default_plan(n, "fp16", complex_data=True) for n in (1024, 4096)),
        dtype="complex64",
        products="fp16",
    ),
    "float": partial(
        convolve, *(kernels_numba.families.default_plan(n, "fp32") for n in (256, 1024, 4096)), dtype="fp32"
    ),
    "float-large": partial(
        convolve, *(kernels_numba.families.default_plan(n, "fp32") for n in (16384, 32768)), dtype="fp32"
    ),
    "rounds": partial(
        convolve, *_plans((12, 16, 16)), *_plans((20, 16, 16), (16, 8, 9, 16), packing="half"), dtype="fp32"
    ),
    "complex": partial(
        convolve,
        *(kernels_numba.families.default_plan(n, "complex64") for n in (1024, 18432)),
        dtype="complex64",
    ),
    "two-gates": partial(
        gate_twice, *_plans((32, 32), (64, 64), (16, 16, 16), (8, 8, 16, 16), (48, 48), (17, 16, 16))
    ),
    "two-gates-float": partial(gate_twice, *_plans((4, 8, 16), (4, 16, 16), (12, 16, 16)), dtype="fp32"),
    "filter": transform_filters,
    "from-taps": convolve_from_taps,
    "gradient": partial(differentiate, *_plans((16, 16), (32, 32), (48, 32), (16, 16, 16))),
    "gradient-large": partial(differentiate, *_plans((8, 16, 16), (32, 16, 16), (16, 32, 32), (64, 32, 32))),
    "gradient-turned": partial(
        differentiate,
        *_plans((16, 16), (48, 16), (8, 16, 16), (24, 16, 16), (24, 32, 32), packing="right-angle"),
    ),
    "backward": partial(
        differentiate_all,
        *_plans((16, 16), (32, 32), (8, 16, 16)),
        *_plans((24, 16), (8, 16, 16), (16, 16, 16), packing="right-angle"),
    ),
    "gradient-float": partial(differentiate, *_plans((16, 16), (6, 8, 8, 8), (3, 16, 16, 16)), dtype="fp32"),
    "gradient-zeros": partial(differentiate, *_plans((32, 32), (32, 16, 32)), zeros=True),
    "train": train,
    "attention": attend,
    "softmax": normalise,
    "gemv": partial(multiply, "gemv", 4),
    "flat": partial(multiply, "flat", 33),
    "full": partial(multiply, "full", 130),
    "engine": multiply_by_engine,
    "conv2d": partial(convolve_images, "fp16", *LAYERS),
    "conv2d-float": partial(convolve_images, "fp32", *LAYERS),
    "conv2d-large": partial(convolve_images, "fp16", *LARGE),
    "conv2d-large-float": partial(convolve_images, "fp32", *LARGE),
    "long": partial(convolve_long, *_plans((16, 16, 16), (32, 16, 16), (16, 16, 16, 16))),
    "long-large": partial(convolve_long, *_plans((16, 32, 16, 16), (32, 32, 16, 16))),
    "long-sparse": partial(convolve_long, *_plans((32, 16, 16), (16, 16, 16, 16)), zeros=True),
    "long-float": partial(
        convolve_long, *_plans((16, 16, 16), (32, 16, 16), (16, 16, 16, 16), (16, 32, 16, 16)), dtype="fp32"
    ),
    "long-float-sparse": partial(
        convolve_long, *_plans((32, 16, 16), (16, 16, 16, 16)), dtype="fp32", zeros=True
    ),
    "zeros": partial(
        leave_out_zeros,
        *_plans((32, 32), (8, 16, 16), (16, 16, 16), (16, 16, 32), (8, 8, 16, 16), (16, 8, 8, 16, 16)),
    ),
    "stream": convolve_in_chunks,
}


def check(part: str, tool: str, limit_s: float) -> tuple[bool, str]:
    """Whether a part is clean under a tool, and what to say about it."""
    command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--print-limit", "5"]
    command += [sys.executable, __file__, "--here", part]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return False, f"not finished after {limit_s:.0f} s"
    text = done.stdout + done.stderr
    clean = CLEAN.search(text) is not None and RAN in text and done.returncode == 0
    return clean, "clean" if clean else "\n" + "\n".join(text.splitlines()[-30:])


def main() -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python tests/sanitize.py", description=str(__doc__).split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="memcheck or racecheck (both)")
    parser.add_argument("--jobs", type=int, default=8, help="processes side by side (%(default)s)")
    parser.add_argument("--limit", type=float, default=600, help="seconds a part may take (%(default)s)")
    parser.add_argument("--here", metavar="PART", choices=PARTS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.here:
        warnings.simplefilter("ignore", kernels_numba.HostCopyWarning)
        PARTS[chosen.here]()
        print(RAN)
        return 0
    unknown = sorted(set(chosen.parts) - set(PARTS))
    if unknown:
        parser.error(f"{', '.join(unknown)}: accepted are {', '.join(PARTS)}")
    here = kernels_numba.device()
    if not here.is_gpu or not shutil.which("compute-sanitizer"):
        missing = "compute-sanitizer, which the CUDA toolkit has" if here.is_gpu else f"a GPU ({here.reason})"
        print(f"this needs {missing}", file=sys.stderr)
        return 4
    failed = 0
    jobs = [(part, tool) for part in chosen.parts or PARTS for tool in chosen.tool or TOOLS]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for (part, tool), (clean, text) in zip(
            jobs, pool.map(lambda job: check(*job, limit_s=chosen.limit), jobs), strict=True
        ):
            failed += not clean
            print(f"{part:12s} {tool:10s} {text}", flush=True)
    print(f"{len(jobs) - failed} of {len(jobs)} clean")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
