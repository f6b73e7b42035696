"""How modules of small kernels (`tiny_kernels` and its like) name their kernels, and what a launch asks of them."""

from collections.abc import Callable
from typing import Any


def registry(spec_of: Callable[..., Any]) -> tuple[dict[str, Any], Callable, Callable, Callable]:
    """``(KERNELS, tiny, build, min_blocks)`` of a module; ``spec_of(name, **settings)`` says what is compiled."""
    builders: dict[str, Callable[[Any], Callable]] = {}
    kernels: dict[str, Any] = {}

    def tiny(*names: str, **settings: Any) -> Callable:
        """Register a builder ``build(tile)``, or ``build(tile, *words)`` for a name ``base:word:word``."""

        def register(make: Callable) -> Callable:
            for name in names:
                values = [int(x) if x.isdigit() else x for x in name.split(":")[1:]]
                builders[name] = lambda tile, values=values: make(tile, *values)
                kernels[name] = spec_of(name, **settings)
            return make

        return register

    def build(tile: Any, spec: Any) -> Callable:
        return builders[spec.name](tile)

    def min_blocks(spec: Any) -> int:
        return 1

    return kernels, tiny, build, min_blocks
