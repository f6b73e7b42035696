"""What every test shares: how many examples Hypothesis draws, and what happens to GPU tests without a GPU.

Hypothesis profiles:

* ``dev`` (the default): random examples, failures remembered in ``.hypothesis``;
* ``ci`` (``make test``): fewer examples, the same ones on every run;
* ``nightly`` (``pytest --hypothesis-profile=nightly``): many random examples.

No profile has a deadline: the first call of a kernel compiles it, and test processes share cores.
"""

import pytest
from hypothesis import HealthCheck, settings

_COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", _COMMON, max_examples=50)
settings.register_profile("ci", _COMMON, max_examples=30, derandomize=True, database=None)
settings.register_profile("nightly", _COMMON, max_examples=1000)
settings.load_profile("dev")  # --hypothesis-profile replaces it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="fail, instead of skipping the GPU tests, where the kernels would run on the CPU",
    )


def why_no_gpu() -> str | None:
    """Why kernels run on the CPU here, or None if they run on a GPU."""
    import kernels_numba

    device = kernels_numba.device()
    return None if device.is_gpu else str(device)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    required = config.getoption("--require-gpu")
    if not gpu_items and not required:
        return
    reason = why_no_gpu()
    if reason is None:
        return
    if required:
        raise pytest.UsageError(f"--require-gpu: there is no GPU to test on: {reason}")
    for item in gpu_items:
        item.add_marker(pytest.mark.skip(reason=f"needs a GPU; {reason}"))
