"""Gradients of the fused convolution, from its arguments and the gradient in its result; nothing else is kept.

With y = postgate * c, c = x conv k, x = u * pregate and e = dy * postgate (`reference.fftconv_gradients`), per channel:

    du          pregate * (e corr k)       the convolution's kernel with the filter's adjoint spectrum
    dpregate    u * (e corr k)             the same correlation under another gate, in the same run
    dpostgate   dy * (x conv k)            the convolution, gated by dy
    dk          sum over the batch of x corr e      kernels of its own (`filter_sums.py`)

so du and dpregate cost one run of the convolution together, dpostgate another, and dk about as much. Gradients of
sequences have their type and are within ``reference.fftconv_bound``; dk is float32, within
``reference.filter_gradient_bound``. For fp32 sequences all is fp32, within ``reference.fft32_bound`` and
``reference.filter_gradient32_bound``. Every sum has a fixed order: two calls on one kind of GPU give the same bits.

Loss scaling in fp16: transforms of dy are unitary, so dy may be as large as `fftconv` lets u be (2000 at N = 1024), and
what is smaller than 6e-5 loses bits as all subnormal fp16 numbers do. conj(Z) W is formed from halves and summed in
fp32, which neither overflows nor underflows for any dy that fp16 holds.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from kernels_numba import backward_pass, complex_gradients
from kernels_numba.arrays import Adapter, adapter_of
from kernels_numba.backward_pass import BackwardPass
from kernels_numba.call_filter import prepare_for_call
from kernels_numba.device import LARGEST_SHARED_BYTES, device
from kernels_numba.fftconv import FFTConv, HostCopyWarning, _dtype_of, _shape_of
from kernels_numba.filter_sums import FilterGradient
from kernels_numba.host_arrays import _write
from kernels_numba.long_gradient import LongFilterGradient, choose
from kernels_numba.plan_choice import check_pattern
from kernels_numba.spectrum import Spectrum, prepare_adjoint, prepare_filter
from kernels_numba.tile.layout import COMPLEX_TYPES
from monarch import Plan, SparsityPattern

NEEDS = ("u", "k", "pregate", "postgate")


class Gradients(NamedTuple):
    """Gradients, each of the shape of its operand; None for what was not needed, or a gate that was not given."""

    u: Any
    k: Any
    pregate: Any
    postgate: Any


def fftconv_gradients(
    u: Any,
    k: Any,
    dy: Any,
    *,
    mode: str = "circular",
    pregate: Any = None,
    postgate: Any = None,
    plan: Plan | None = None,
    pattern: SparsityPattern | None = None,
    products: str | None = None,
    taps: int | None = None,
    needs: Iterable[str] = NEEDS,
) -> Gradients:
    """Return the gradients of `fftconv` in its operands, from ``dy``, that in its result.

    Args:
        u: as given to `fftconv`, [B, H, L] or [H, L], of any type; complex ones of NumPy, PyTorch or CuPy.
        k: the filter [H, K] or [K]; or a :class:`Spectrum` from ``prepare_filter(k, ..., gradients=True)``, which costs
            nothing here (its gradient is [H, K]).
        dy: the gradient in y, shaped and typed as ``u``.
        mode: as given to `fftconv`, and so are the rest.
        pregate: multiplied ``u``.
        postgate: multiplied the result.
        plan: of the transforms; by default the fastest. That of the filter's gradient may be another one.
        pattern: as in `sparse_fftconv`, with its ``plan``: which slots of the filter's spectrum are kept.
        products: as in `fftconv`.
        taps: K, if ``k`` is a spectrum; by default those it was made from.
        needs: which gradients are wanted; each costs about one convolution, u and pregate one together.

    Returns:
        The gradients in u and the gates, arrays of their kind; that in k float32 [H, K] or [K] (of a complex filter
        complex64), summed over all that share a filter. Where kernels run on a GPU nothing here waits for it.

    Raises:
        TypeError, ValueError: as `fftconv`; a spectrum without its adjoint, or an unknown name in ``needs``.
        LaunchError: the GPU refused a kernel, or an earlier kernel failed.
    """
    adapter = adapter_of(u, "u")
    dtype, shape = _dtype_of(u, adapter, "u"), _shape_of(u)
    if isinstance(k, Spectrum):
        if mode not in ("circular", k.mode):
            raise ValueError(
                f"mode: the spectrum was prepared for {k.mode}, not {mode}; prepare it with this mode"
            )
        if pattern is not None:
            raise ValueError("pattern: the spectrum is prepared; give the pattern to prepare_filter")
        return FFTConvGradients(k, batch=shape[0], taps=taps, needs=needs)(
            u, dy, pregate=pregate, postgate=postgate
        )
    wanted = _wanted(needs)
    if pattern is not None and plan is None:
        raise ValueError("pattern: zeros are of one plan's spectrum; give that plan, too")
    known = adapter_of(k, "k")
    if taps not in (None, k.shape[-1]):
        raise ValueError(f"taps: the filter has {k.shape[-1]} taps, not {taps}; leave taps away")
    if dtype in COMPLEX_TYPES:
        _Run(None, None, None, shape, dtype, wanted)._checked(u, dy, pregate, postgate)
        found = complex_gradients.gradients(
            u, k, dy, pregate, postgate, wanted, mode=mode, plan=plan, pattern=pattern, products=products
        )
        return Gradients(**dict.fromkeys(NEEDS) | found)
    on_gpu = known.index(k) is not None or device().is_gpu
    prepared: dict[str, Any] = {"length": shape[2], "mode": mode, "dtype": dtype, "plan": plan}
    prepared |= {"channels": shape[1], "products": products, "scaled": True if on_gpu else None}
    prepared |= {"pattern": pattern}
    correlate = "u" in wanted or ("pregate" in wanted and pregate is not None)
    convolve = "postgate" in wanted and postgate is not None
    gradient = (
        _gradient(shape, int(k.shape[-1]), mode, dtype, products, plan, len(k.shape) == 1, pattern)
        if "k" in wanted
        else None
    )
    gates = {name for name, gate in (("pregate", pregate), ("postgate", postgate)) if gate is not None}
    whole = {"u", "k", *gates} <= wanted and backward_pass.plan_of(gradient, gated=bool(gates))
    if whole and plan is None:  # spectra as the kernel that makes all gradients wants them
        prepared["plan"] = whole
    make = prepare_filter if whole else prepare_for_call
    forward = make(k, **prepared, gradients=correlate) if convolve else None
    adjoint = forward.adjoint if forward is not None else None
    if correlate and adjoint is None:
        adjoint = prepare_adjoint(k, **prepared) if whole else prepare_for_call(k, **prepared, adjoint=True)
    run = _Run(
        FFTConv(adjoint, batch=shape[0]) if adjoint is not None else None,
        FFTConv(forward, batch=shape[0]) if forward is not None else None,
        gradient,
        shape,
        dtype,
        wanted,
    )
    return run(u, dy, pregate, postgate)


class FFTConvGradients:
    """Gradients prepared for one filter, batch size and length, as :class:`FFTConv` is for the convolution.

    Args:
        spectrum: from ``prepare_filter(k, ..., gradients=True)``.
        batch: B.
        taps: K, by default those the spectrum was made from.
        needs: which gradients are wanted.
        shared: one filter is shared by all channels: its gradient is [K], not [H, K].

    A call allocates its results and a workspace (8 bytes for each bin of each channel and share of the batch) in the
    library of the arrays. It runs on the caller's current stream and can be captured in a CUDA graph, after one call
    outside, which compiles.
    """

    def __init__(
        self,
        spectrum: Spectrum,
        *,
        batch: int,
        taps: int | None = None,
        needs: Iterable[str] = NEEDS,
        shared: bool = False,
    ) -> None:
        if not isinstance(spectrum, Spectrum):
            raise TypeError(
                f"spectrum: expected what prepare_filter makes, got {type(spectrum).__name__}; "
                "FFTConvGradients(prepare_filter(k, length=L, gradients=True), batch=B)"
            )
        wanted = _wanted(needs)
        if spectrum.dtype in COMPLEX_TYPES:
            raise TypeError(
                "spectrum: gradients of complex convolutions need conjugate spectra; give the filter to "
                "fftconv_gradients"
            )
        if spectrum.adjoint is None and ("u" in wanted or "pregate" in wanted):
            raise ValueError(
                "spectrum: gradients in u and pregate need the filter's adjoint spectrum; "
                "prepare_filter(k, ..., gradients=True) makes it too"
            )
        if taps not in (None, spectrum.taps):
            raise ValueError(f"taps: the spectrum was made from {spectrum.taps} taps, not {taps}")
        convolve = FFTConv(spectrum, batch=batch)
        shape, dtype = convolve.shape, spectrum.dtype
        plan = spectrum.plan.with_(signal=None, wanted=None)
        gradient = None
        if "k" in wanted:
            how = shape, spectrum.taps, spectrum.mode, dtype, spectrum.products
            pattern = spectrum.pattern
            gradient = _gradient(*how, plan if pattern else None, shared, pattern)
        correlate = FFTConv(spectrum.adjoint, batch=batch) if spectrum.adjoint else None
        self.plan = plan
        self._run = _Run(correlate, convolve, gradient, shape, dtype, wanted)

    def __call__(self, u: Any, dy: Any, *, pregate: Any = None, postgate: Any = None) -> Gradients:
        """The gradients; see :func:`fftconv_gradients`."""
        return self._run(u, dy, pregate, postgate)

    @property
    def filter_gradient(self) -> FilterGradient | LongFilterGradient:
        """The part that computes dk; raises ``ValueError`` if it was not asked for."""
        if self._run.gradient is None:
            raise ValueError('needs: "k" was not among them')
        return self._run.gradient


class _Run:
    """What the function and the prepared class share."""

    def __init__(
        self,
        correlate: FFTConv | None,
        convolve: FFTConv | None,
        gradient: FilterGradient | LongFilterGradient | None,
        shape: tuple[int, int, int],
        dtype: str,
        wanted: frozenset[str],
    ) -> None:
        self.correlate, self.convolve, self.gradient = correlate, convolve, gradient
        self.shape, self.dtype, self.wanted = shape, dtype, wanted

    def __call__(self, u: Any, dy: Any, pregate: Any, postgate: Any) -> Gradients:
        adapter, index = self._checked(u, dy, pregate, postgate)
        found: dict[str, Any] = dict.fromkeys(NEEDS)
        if self._at_once(pregate, postgate):
            assert self.correlate is not None and isinstance(self.gradient, FilterGradient)
            whole = BackwardPass(self.correlate, self.convolve, self.gradient)
            given = u, dy, pregate, postgate
            if index is not None:
                return Gradients(**found | whole.launch(*given, adapter=adapter, index=index))
            if device().is_gpu:
                there, known, where = _sent(*given)
                values = {
                    name: x.host() for name, x in whole.launch(*there, adapter=known, index=where).items()
                }
            else:
                values, _, _ = whole.run_cpu(*_on_host(*given))
            found["k"] = self._as_given(values.pop("k"), u)
            for name, x in values.items():
                found[name] = adapter.empty_like(u)
                _write(found[name], adapter, x)
            return Gradients(**found)
        if self.gradient is not None:
            found["k"] = self._filter(u, dy, pregate, postgate, adapter, index)
        of_u, of_pregate = "u" in self.wanted, "pregate" in self.wanted and pregate is not None
        if of_u and of_pregate:
            assert self.correlate is not None
            found["u"], found["pregate"] = self.correlate.twice(dy, pregate, u, pregate=postgate)
        elif of_u:
            assert self.correlate is not None
            found["u"] = self.correlate(dy, pregate=postgate, postgate=pregate)
        elif of_pregate:
            assert self.correlate is not None
            found["pregate"] = self.correlate(dy, pregate=postgate, postgate=u)
        if "postgate" in self.wanted and postgate is not None:
            assert self.convolve is not None
            found["postgate"] = self.convolve(u, pregate=pregate, postgate=dy)
        return Gradients(**found)

    def _checked(self, u: Any, dy: Any, pregate: Any, postgate: Any) -> tuple[Adapter, int | None]:
        """All arrays are what they should be, in one place: the adapter of ``u``, and the GPU."""
        first = adapter_of(u, "u")
        index = first.index(u)
        shapes = [self.shape, self.shape[1:]] if self.shape[0] == 1 else [self.shape]
        for name, x in (("u", u), ("dy", dy), ("pregate", pregate), ("postgate", postgate)):
            if x is None and name != "dy":
                continue
            adapter = adapter_of(x, name)
            if tuple(x.shape) not in shapes:
                raise ValueError(f"{name}: expected shape {self.shape}, [B, H, L] as u; got {tuple(x.shape)}")
            if adapter.dtype_name(x) != self.dtype:
                raise TypeError(
                    f"{name}: expected {self.dtype} (as u), got {adapter.dtype_name(x)}; convert it, nothing is "
                    "converted silently"
                )
            if adapter.index(x) != index:
                raise ValueError(
                    f"{name} and u are in different places; move them to one GPU, or to host memory"
                )
            if not adapter.contiguous(x):
                raise ValueError(
                    f"{name}: expected a contiguous (row-major) array; copy it, e.g. with .contiguous()"
                )
            objection = adapter.objection(x)
            if objection:
                raise TypeError(f"{name}: {objection}")
        return first, index

    def _filter(
        self, u: Any, dy: Any, pregate: Any, postgate: Any, adapter: Adapter, index: int | None
    ) -> Any:
        assert self.gradient is not None
        if index is not None:
            return self.gradient.launch(u, dy, pregate, postgate, adapter=adapter, index=index)
        if not device().is_gpu:
            return self._as_given(self.gradient.run_cpu(*_on_host(u, dy, pregate, postgate))[0], u)
        there, known, where = _sent(u, dy, pregate, postgate)
        return self._as_given(self.gradient.launch(*there, adapter=known, index=where).host(), u)

    def _at_once(self, pregate: Any, postgate: Any) -> bool:
        """Whether all gradients are wanted, and one kernel makes them."""
        gates = {name for name, gate in (("pregate", pregate), ("postgate", postgate)) if gate is not None}
        if not {"u", "k", *gates} <= self.wanted:
            return False
        return backward_pass.fits(self.correlate, self.gradient, gated=bool(gates))

    @staticmethod
    def _as_given(values: Any, u: Any) -> Any:
        """A result in host memory as an array of the library of ``u``."""
        if adapter_of(u, "u").library != "torch":
            return values
        import torch

        return torch.from_numpy(values)


def _on_host(*arrays: Any) -> list[Any]:
    return [None if x is None else adapter_of(x, "u").host(x) for x in arrays]


def _sent(*arrays: Any) -> tuple[list[Any], Adapter, int]:
    """Copies of host arrays on a GPU, their adapter, and the GPU; says that this costs time."""
    from kernels_numba.launch import DeviceBuffer, device_index

    warnings.warn(
        "arrays in host memory are copied to the GPU and back; keep them there (CuPy, PyTorch, Numba) for speed",
        HostCopyWarning,
        stacklevel=5,
    )
    where = device_index()
    there = [None if x is None else DeviceBuffer.of(x, where) for x in _on_host(*arrays)]
    return there, adapter_of(there[0], "u"), where


def _wanted(needs: Iterable[str]) -> frozenset[str]:
    wanted = frozenset((needs,) if isinstance(needs, str) else needs)
    if not wanted <= frozenset(NEEDS):
        raise ValueError(
            f"needs: accepted are {', '.join(NEEDS)}; got {', '.join(sorted(wanted - frozenset(NEEDS)))}"
        )
    return wanted


@lru_cache(maxsize=64)
def _gradient(
    shape: tuple[int, int, int],
    taps: int,
    mode: str,
    dtype: str,
    products: str | None,
    plan: Plan | None,
    shared: bool,
    pattern: SparsityPattern | None,
) -> FilterGradient | LongFilterGradient:
    limit = device().shared_bytes_per_block or LARGEST_SHARED_BYTES
    how: dict[str, Any] = {"taps": taps, "mode": mode, "dtype": dtype, "shared": shared}
    exact = 0
    if pattern is not None:
        assert plan is not None
        check_pattern(pattern, plan, mode, shape[2])
        how["kept"], exact = pattern.bins(plan), plan.n
    split = choose(mode, shape[2], taps, dtype, products or dtype, limit, exact=exact)
    if split is not None:
        return LongFilterGradient(shape, split=split, **how)
    return FilterGradient(shape, products=products, plan=plan, **how)
