r"""Convolution layers in two dimensions: times by FFT and of direct convolution, which one to take, and why.

**These kernels.** A pass is four launches (`kernels_numba.conv2d_plan`), each as long as its bytes take, or its
products, or the points it transforms, and some microseconds more (`kernels_numba.conv2d_dispatch`, which has the rates
found on an H200; on other GPUs memory and tensor cores are scaled with the GPU file's).

**FFT convolution in fp32, as published.** For S images of n x n, f input and f' output channels and filters of k x k,
Mathieu, Henaff and LeCun (arXiv 1312.5851) count, with transforms reused,

.. math:: 2 C n^2 \log n\,(S f + f f' + S f') + 4 S f f' n^2

operations against S f f' (n - k + 1)^2 k^2 multiply-adds of the direct sum. Operations alone make the FFT win nearly
everywhere. The spectra decide: a map of n x n has 8 n (n/2 + 1) bytes of them, for each of S f + f f' + S f' maps, and
with a transposition between transforms and products each crosses memory four times, and six where a transform takes
two passes: fbfft transforms maps of up to 32 x 32 in one kernel, larger ones in two halves with the half-transformed
maps in device memory between them (fbcuda, ``fbfft/FBFFT2D-inl.cuh``). `published` counts all that; `TITAN_X` is the
GPU of convnet-benchmarks (S. Chintala, 2015), whose layers `PUBLISHED` has with the times of fbfft (Vasilache et al.,
arXiv 1412.7580) and cuDNN R2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2
from typing import TYPE_CHECKING, Any

from costmodel.gpus import GPU, load

if TYPE_CHECKING:
    from kernels_numba.conv2d_dispatch import Explanation, Rates

PASSES = {"fprop": "forward", "bprop": "input_gradient", "accgrad": "weight_gradient"}
"""The passes as measurement files and the command line call them, and as the kernels do."""
FITTED_GPU = "h200-sxm"
RELATIVE_ERROR, RELATIVE_ERROR_ELSEWHERE = 0.15, 0.3
"""Of a pass's time, where the rates were found and on other GPUs; what the project assumes."""


def rates(gpu: GPU | str) -> Rates:
    """Rates of the kernels on a GPU: those found on an H200, times the ratio of the GPUs' memory and tensor rates."""
    from kernels_numba.conv2d_dispatch import H200

    found, reference = load(gpu), load(FITTED_GPU)

    def ratio(key: str) -> float:
        return float(found.spec[key]) / float(reference.spec[key])

    issue = ratio("sm_count") * ratio("boost_clock_mhz")
    memory, tensor = ratio("memory_bandwidth_bytes_per_s"), ratio("fp16_tensor_flops_per_s")
    single = ratio("fp32_flops_per_s")
    return replace(
        H200,
        memory=H200.memory * memory,
        tensor=H200.tensor * tensor,
        direct=H200.direct * tensor,
        transform=H200.transform * issue,
        large_transform=H200.large_transform * issue,
        held=H200.held * issue,
        vector=H200.vector * single,
        vector_direct=H200.vector_direct * single,
        direct_depthwise=H200.direct_depthwise * single,
        vector_transform=H200.vector_transform * issue,
    )


def relative_error(gpu: GPU) -> float:
    """Of a pass's time on a GPU."""
    return RELATIVE_ERROR if gpu.slug == FITTED_GPU else RELATIVE_ERROR_ELSEWHERE


def predict(
    batch: int,
    inputs: int,
    outputs: int,
    size: int,
    taps: int,
    *,
    gpu: GPU | str,
    which: str = "forward",
    dtype: str = "fp16",
    padding: Any = 0,
    memory: int | None = None,
) -> Explanation:
    """Predict one pass of a layer of ``size`` x ``size`` maps and ``taps`` x ``taps`` filters.

    Args:
        batch: S, images.
        inputs: channels of x.
        outputs: channels of y.
        size: n, rows and columns of x.
        taps: k, rows and columns of a filter.
        gpu: a GPU file's slug or path, or what `costmodel.load_gpu` gave.
        which: "forward", "input_gradient" or "weight_gradient".
        dtype: "fp16", "bf16" or "fp32".
        padding: as in ``kernels_numba.conv2d``.
        memory: the most bytes of spectra.

    Raises:
        ValueError: shapes that do not fit each other.
    """
    from kernels_numba.conv2d_dispatch import explain
    from kernels_numba.conv2d_geometry import Geometry

    found = load(gpu)
    geometry = Geometry.of((batch, inputs, size, size), (outputs, inputs, taps, taps), padding=padding)
    limit = int(found.spec["shared_memory_per_block_bytes"])
    return explain(geometry, which, dtype, rates=rates(found), memory=memory, shared_limit=limit)


def crossover(
    batch: int, inputs: int, outputs: int, size: int, *, gpu: GPU | str, which: str = "forward"
) -> int | None:
    """The smallest odd k at which the FFT is ahead of direct convolution, as predicted; None if it never is.

    (As k comes near n there are few results left, and the direct sum may be ahead again.)
    """
    for taps in range(1, size + 1, 2):
        if predict(batch, inputs, outputs, size, taps, gpu=gpu, which=which).impl == "fft":
            return taps
    return None


# ---- FFT convolution in fp32, as published -------------------------------------------------------------------
@dataclass(frozen=True)
class Layer:
    """S images of n x n, f to f' channels, k x k taps; ``fft_ms`` and ``direct_ms`` as published, forward."""

    batch: int
    inputs: int
    outputs: int
    size: int
    taps: int
    fft_ms: float
    direct_ms: float

    @property
    def direct_flops(self) -> float:
        """Of the direct sum."""
        out = self.size - self.taps + 1
        return 2.0 * self.batch * self.inputs * self.outputs * out**2 * self.taps**2

    @property
    def padded(self) -> int:
        """Rows and columns as a power of two."""
        return 1 << (self.size - 1).bit_length()

    @property
    def maps(self) -> tuple[int, int, int]:
        """Maps of x, of w and of y."""
        return self.batch * self.inputs, self.inputs * self.outputs, self.batch * self.outputs

    @property
    def fft_flops(self) -> tuple[float, float]:
        """Of the transforms, and of the products: half a plane of complex numbers, 8 flops each."""
        n = self.padded
        transforms = sum(self.maps) * 5.0 * n * n * log2(n)
        return transforms, 8.0 * self.batch * self.inputs * self.outputs * n * (n // 2 + 1)


PUBLISHED = (
    Layer(128, 3, 96, 128, 11, 57, 56),
    Layer(128, 64, 128, 64, 9, 27, 143),
    Layer(128, 128, 128, 32, 9, 6, 53),
    Layer(128, 128, 128, 16, 7, 2, 6),
    Layer(128, 384, 384, 13, 3, 9, 11),
)
"""Layers of convnet-benchmarks on a Titan X, fp32, forward: fbfft, and cuDNN R2."""


@dataclass(frozen=True)
class FloatRates:
    """What a GPU and its libraries do in a second in fp32."""

    memory: float
    flops: float
    direct: float


TITAN_X_BANDWIDTH, TITAN_X_FLOPS = 336.5e9, 6.14e12
TITAN_X = FloatRates(memory=0.49 * TITAN_X_BANDWIDTH, flops=0.7 * TITAN_X_FLOPS, direct=0.6 * TITAN_X_FLOPS)
"""Data sheet times what products and direct convolutions reached in those years; for memory, what fits
(`memory_share`)."""
ONE_PASS = 32
"""Rows and columns of the largest map that fbfft transforms in one kernel."""


def crossings(layer: Layer) -> int:
    """How often a spectrum crosses memory: written, transposed (read and written), and read.

    Where a transform takes two passes, it is written and read once more between them.
    """
    return 4 if layer.padded <= ONE_PASS else 6


def published(layer: Layer, r: FloatRates = TITAN_X) -> tuple[float, float]:
    """Milliseconds of a layer in fp32: by FFT, and direct."""
    spectrum = 8.0 * layer.padded * (layer.padded // 2 + 1)
    out = layer.size - layer.taps + 1
    stored = [
        4.0 * count * side**2 for count, side in zip(layer.maps, (layer.size, layer.taps, out), strict=True)
    ]
    transforms, products = layer.fft_flops
    total = sum(layer.maps) * spectrum
    moved = (sum(stored) + (crossings(layer) - 1) * total) / r.memory
    seconds = max(moved, transforms / r.flops) + max(total / r.memory, products / r.flops)
    return 1e3 * seconds, 1e3 * layer.direct_flops / r.direct


def memory_share(layers: tuple[Layer, ...] = PUBLISHED) -> float:
    """The share of the Titan X's bandwidth that fits the published ratios of direct to FFT best, logarithms squared.

    Ratios decide which way to go, and what makes both ways slower on a layer than any rate says cancels in them.
    """

    def misfit(share: float) -> float:
        rates, total = replace(TITAN_X, memory=share * TITAN_X_BANDWIDTH), 0.0
        for layer in layers:
            fft, direct = published(layer, rates)
            total += log2(direct / fft * layer.fft_ms / layer.direct_ms) ** 2
        return total

    return min((share / 100 for share in range(20, 100)), key=misfit)


def by_operations(layer: Layer) -> float:
    """How much faster the FFT would be if operations alone counted."""
    return layer.direct_flops / sum(layer.fft_flops)
