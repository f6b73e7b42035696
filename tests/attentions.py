"""Decode attention to try, for the tests of both bodies: structure is drawn, data come from a seed."""

from typing import Any, NamedTuple

import numpy as np
from hardware import HALF
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds

import reference

KINDS = ("noise", "narrow", "Llama2-7B", "ChatGLM2-6B", "OPT-6.7B", "outlier", "all out of range", "zeros")
"""How logits are spread: the paper's three models have their ranges, measured about phi = 0."""
RANGES = {"Llama2-7B": (-16.8, 6.5), "ChatGLM2-6B": (-10.5, 13.7), "OPT-6.7B": (-496.8, 363.5)}
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)


class Problem(NamedTuple):
    q: NDArray  # [B, T, Hq, D]
    k: NDArray  # [B, L, Hkv, D] or [pages, page, Hkv, D]
    v: NDArray
    seqlens: list[int] | None
    block_table: NDArray | None


class Case(NamedTuple):
    """One attention to try."""

    batch: int = 2
    tokens: int = 1
    kv: int = 2
    group: int = 1
    size: int = 64
    room: int = 40
    dtype: str = "fp16"
    kind: str = "noise"
    lengths: bool = False
    page: int = 0
    softcap: float | None = None
    scale: float | None = None
    phi: float = 0.0
    bounds: tuple[float, float] = (-10.0, 10.0)
    variant: str = "async"
    splits: int = 2
    seed: int = 0

    def data(self) -> Problem:
        """Queries and caches; the first component of keys carries what the kind asks of the logits."""
        draw = np.random.default_rng(self.seed)
        heads = self.kv * self.group
        q = draw.standard_normal((self.batch, self.tokens, heads, self.size))
        k = draw.standard_normal((self.batch, self.room, self.kv, self.size))
        v = draw.standard_normal((self.batch, self.room, self.kv, self.size))
        factor = 1 / np.sqrt(self.size) if self.scale is None else self.scale
        if self.kind == "narrow":
            q *= 0.1
        elif self.kind in RANGES:
            low, high = RANGES[self.kind]
            # Logits uniform in the range: queries point along the first axis.
            q *= 0.01
            q[..., 0] = 1.0
            k[..., 0] = draw.uniform(low, high, k.shape[:-1]) / factor
        elif self.kind == "outlier":
            b, j, h = (draw.integers(0, n) for n in k.shape[:3])
            k[b, j, h] *= draw.choice([-40.0, 40.0])
        elif self.kind == "all out of range":
            q[..., 0] = 1.0
            k[..., 0] = (self.phi + self.bounds[1] + draw.uniform(1, 9, k.shape[:-1])) / factor
        elif self.kind == "zeros":
            q[:] = 0
        lengths = draw.integers(0, self.room + 1, self.batch).tolist() if self.lengths else None
        q, k, v = (x.astype(HALF[self.dtype]) for x in (q, k, v))
        if not self.page:
            return Problem(q, k, v, lengths, None)
        blocks = -(-self.room // self.page)
        order = draw.permutation(self.batch * blocks + 2)  # two pages that nobody uses, full of NaN
        table = order[: self.batch * blocks].reshape(self.batch, blocks)
        pages = []
        for x in (k, v):
            paged = np.full((order.size, self.page, self.kv, self.size), np.nan, x.dtype)
            for b in range(self.batch):
                for i in range(blocks):
                    part = x[b, i * self.page : (i + 1) * self.page]
                    paged[table[b, i], : len(part)] = part
            pages.append(paged)
        return Problem(q, *pages, lengths or [self.room] * self.batch, table)

    @property
    def settings(self) -> dict[str, Any]:
        """What the kernel and the reference are both told."""
        return {
            "phi": self.phi,
            "bounds": self.bounds,
            "scale": self.scale,
            "softcap": self.softcap,
            "variant": self.variant,
        }

    def exact(self, p: Problem, **other: Any) -> NDArray:
        """The reference."""
        return reference.decode_attention(
            p.q, p.k, p.v, seqlens=p.seqlens, block_table=p.block_table, **{**self.settings, **other}
        )

    def tolerance(self, p: Problem) -> NDArray:
        """The bound on each element."""
        return reference.attention_tolerance(
            p.q,
            p.k,
            p.v,
            dtype=self.dtype,
            tf32=self.tokens * self.group > 4,
            phi=self.phi if self.variant == "async" else None,
            scale=self.scale,
            softcap=self.softcap,
            seqlens=p.seqlens,
            block_table=p.block_table,
        )

    def flags(self, p: Problem) -> NDArray:
        """The rows that "async" must recompute."""
        return reference.attention_flags(
            p.q,
            p.k,
            phi=self.phi,
            bounds=self.bounds,
            seqlens=p.seqlens,
            block_table=p.block_table,
            scale=self.scale,
            softcap=self.softcap,
        )

    def check(self, y: NDArray, p: Problem) -> float:
        """Hold a result to the tolerance; where nothing is seen all of it is zero."""
        exact = self.exact(p)
        if not np.any(exact):
            assert not np.any(y.astype(float))
            return 0.0
        return reference.check_attention(y, exact, self.tolerance(p))


@st.composite
def cases(draw: st.DrawFn, *, room: int = 70, tokens: int = 8) -> Case:
    return Case(
        batch=draw(st.integers(1, 2), label="B"),
        tokens=draw(st.integers(1, tokens), label="T"),
        kv=draw(st.integers(1, 2), label="Hkv"),
        group=draw(st.sampled_from(GROUPS), label="group"),
        size=draw(st.sampled_from([64, 72, 80, 96, 104, 128, 136, 192, 200, 256]), label="D"),
        room=draw(st.integers(1, room), label="L"),
        dtype=draw(st.sampled_from(["fp16", "bf16"]), label="dtype"),
        kind=draw(st.sampled_from(KINDS), label="kind"),
        lengths=draw(st.booleans(), label="lengths"),
        page=draw(st.sampled_from([0, 0, 1, 8, 12, 16]), label="page"),
        softcap=draw(st.sampled_from([None, None, 2.0, 30.0]), label="softcap"),
        scale=draw(st.sampled_from([None, None, 0.05, -0.1]), label="scale"),
        phi=draw(st.sampled_from([0.0, -5.0, 1.5]), label="phi"),
        bounds=draw(st.sampled_from([(-10.0, 10.0), (-1.0, 1.0), (-25.0, 25.0)]), label="bounds"),
        variant=draw(st.sampled_from(["async", "async", "sync"]), label="variant"),
        splits=draw(st.integers(1, 6), label="splits"),
        seed=draw(seeds, label="seed"),
    )
