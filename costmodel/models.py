"""Language models and their linear layers, from ``models.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("models.toml")
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Model:
    """A model: its size, and its linear layers [N, K] by name."""

    slug: str
    name: str
    dim: int
    heads: int
    kv_heads: int
    layers: int
    context: int
    linear: dict[str, tuple[int, int]]


@cache
def models() -> dict[str, Model]:
    """All models by slug.

    Raises:
        ValueError: the file has an entry that is not a model.
    """
    raw = tomllib.loads(FILE.read_text(encoding="utf-8"))
    if raw.pop("schema_version", None) != SCHEMA_VERSION:
        raise ValueError(f"{FILE.name}: schema_version must be {SCHEMA_VERSION}")
    found = {}
    for slug, entry in raw.items():
        try:
            layers = {name: (int(n), int(k)) for name, (n, k) in entry.pop("linear").items()}
            found[slug] = Model(slug=slug, linear=layers, **entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{FILE.name}: entry {slug!r} is not a model: {error}") from error
        numbers = [found[slug].dim, found[slug].heads, *(x for pair in layers.values() for x in pair)]
        if min(numbers, default=0) < 1:
            raise ValueError(f"{FILE.name}: entry {slug!r} has a size below 1")
    return found


def model(slug: str) -> Model:
    """The model of a slug. Raises ``ValueError`` with the known ones."""
    if slug not in models():
        raise ValueError(f"model: got {slug!r}; known: {', '.join(models())}; add an entry to {FILE.name}")
    return models()[slug]
