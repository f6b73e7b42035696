"""What the tests of ``monarch.torch`` on the CPU and on a GPU share."""

from typing import Any, NamedTuple

import numpy as np
import torch

import reference

GATES = {"plain": (False, False), "pre": (True, False), "post": (False, True), "both": (True, True)}
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


def array(x: Any) -> Any:
    """A tensor as float64 in NumPy."""
    return None if x is None else x.detach().cpu().double().numpy()


class Operands(NamedTuple):
    """Leaves that record gradients, and a gradient of y."""

    u: Any
    k: Any
    pregate: Any
    postgate: Any
    dy: Any

    @property
    def gates(self) -> dict[str, Any]:
        """Those that there are."""
        return {n: x for n in ("pregate", "postgate") if (x := getattr(self, n)) is not None}


def operands(
    shape: tuple[int, ...],
    taps: int,
    gates: str = "plain",
    dtype: torch.dtype = torch.float64,
    *,
    device: str = "cpu",
    seed: int = 0,
    shared: bool = False,
) -> Operands:
    """Noise; ``dy`` follows ``u``, so that the filter has a gradient that is not lost in rounding."""
    rng = np.random.default_rng(seed)

    def leaf(x: Any, kind: torch.dtype) -> Any:
        return torch.tensor(x, dtype=kind, device=device).requires_grad_()

    u = rng.standard_normal(shape)
    k = rng.standard_normal(taps if shared else (shape[-2], taps)) / np.sqrt(taps)
    before, after = (rng.standard_normal(shape) if wanted else None for wanted in GATES[gates])
    dy = torch.tensor(u + rng.standard_normal(shape), dtype=dtype, device=device)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return Operands(
        leaf(u, dtype),
        leaf(k, wide),
        *(None if gate is None else leaf(gate, dtype) for gate in (before, after)),
        dy,
    )


def exact(o: Operands, mode: str) -> tuple[Any, Any]:
    """y and its gradients in float64."""
    gates = {name: array(x) for name, x in o.gates.items()}
    y = reference.fftconv(array(o.u), array(o.k), mode=mode, **gates)
    return y, reference.fftconv_gradients(array(o.dy), array(o.u), array(o.k), mode=mode, **gates)


def check(o: Operands, y: Any, mode: str, *, order: int, points: int) -> None:
    """Hold y and the gradients that ``y.backward(o.dy)`` left to the bounds of a kernel of so many factors."""
    name = NAMES[o.u.dtype]
    wanted, gradients = exact(o, mode)
    u, k, dy = array(o.u), array(o.k), array(o.dy)
    pregate, postgate = array(o.pregate), array(o.postgate)
    count = len(o.gates)
    scatter = 1 + 5 / np.sqrt(points)  # of single sequences about the mean

    def bound(gates: int) -> float:
        if name == "fp32":
            return scatter * reference.fft32_bound(points, gates=gates)
        return scatter * reference.fftconv_bound(order, name, gates=gates)

    pairs = {"pairs": u.ndim == 3}
    reference.check_close(
        array(y), wanted, u, k, bound=bound(count), pregate=pregate, postgate=postgate, **pairs
    )
    reference.check_close(
        array(o.u.grad), gradients.u, dy, k, bound=bound(count), pregate=postgate, postgate=pregate, **pairs
    )
    if pregate is not None:
        found = array(o.pregate.grad)
        reference.check_close(
            found, gradients.pregate, dy, k, bound=bound(count), pregate=postgate, postgate=u, **pairs
        )
    if postgate is not None:
        found = array(o.postgate.grad)
        reference.check_close(
            found, gradients.postgate, u, k, bound=bound(count), pregate=pregate, postgate=dy, **pairs
        )
    if name == "fp32":
        limit = scatter * reference.filter_gradient32_bound(points, terms=-(-len(u) // 2), gates=count)
    else:
        limit = scatter * reference.filter_gradient_bound(order, name, gates=count)
    reference.check_filter_gradient(
        array(o.k.grad), gradients.k, dy, u, bound=limit, pregate=pregate, postgate=postgate, **pairs
    )
