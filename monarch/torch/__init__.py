"""FFT convolution for PyTorch: with gradients, in ``torch.compile``, under autocast, in CUDA graphs.

    >>> import torch, monarch.torch
    >>> u = torch.randn(2, 3, 100, dtype=torch.float64, requires_grad=True)
    >>> k = torch.randn(3, 100, dtype=torch.float64, requires_grad=True)
    >>> monarch.torch.fftconv(u, k, mode="causal").sum().backward()
    >>> u.grad.shape, k.grad.shape
    (torch.Size([2, 3, 100]), torch.Size([3, 100]))

`fftconv` is the function, `LongConv` the layer with a filter to learn, `operators` has the Hyena operator and the
mixer of M2, `flashfftconv` the calls of the package of that name. docs/training.md tells which code computes what,
in which precision, and what is kept for the backward pass.

This package needs PyTorch, and nothing else here does: ``import monarch`` does not import it.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "monarch.torch needs PyTorch, which is not installed; pip install 'monarch-numba[torch]', or "
        "pip install torch",
        name="torch",
    ) from None

from .functional import fftconv, torch_fftconv
from .host import kernels_on_host
from .modules import LongConv
from .spectra import forget_spectra

__all__ = ["LongConv", "fftconv", "forget_spectra", "kernels_on_host", "torch_fftconv"]
