"""Short discrete Fourier transforms as straight-line programs over registers.

A program is a list of steps on numbered values, built and pruned once per shape: inputs that are zero and outputs that
nobody wants cost nothing. Both bodies run the same steps with one rounding each, so they agree, and the cost model
counts them. Constants are exact (to float64); a body rounds them to the type it computes in.

    X[k1 + a k2] = sum_j2 w_n^(j2 k1) [ sum_j1 x[b j1 + j2] w_a^(j1 k1) ] w_b^(j2 k2),    n = a b, w_n = e^(-2 pi i/n),

is applied until a factor is 4, 2 or an odd prime (Cooley and Tukey 1965). The inverse transform is the forward one of
values whose real and imaginary parts have changed places, both before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import cos, pi, sin
from typing import Any

Value = int | None
"""The number of a value; None is zero."""
Point = tuple[Value, Value]


@dataclass(frozen=True)
class Step:
    """One instruction: ``add`` a + b, ``sub`` a - b, ``neg`` -a, ``mul`` a c, ``fma`` a c + b; c is a constant."""

    kind: str
    a: int
    b: int = -1
    constant: float = 0.0


@dataclass(frozen=True)
class Program:
    """Values 0 .. inputs - 1 are given, step i makes value ``inputs + i``; ``outputs`` are the results."""

    inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    @property
    def flops(self) -> int:
        """Floating-point operations: two for a fused multiply-add, none for a sign."""
        return sum({"fma": 2, "neg": 0}.get(step.kind, 1) for step in self.steps)

    def run(self, values: Sequence[Any], operations: dict[str, Callable]) -> list[Any]:
        """The outputs, by one function for each kind of step, called with a, b (or None) and the constant."""
        made = list(values)
        for step in self.steps:
            b = made[step.b] if step.b >= 0 else None
            made.append(operations[step.kind](made[step.a], b, step.constant))
        return [made[i] for i in self.outputs]


class _Writer:
    """Writes steps, leaves out what is zero."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.steps: list[Step] = []

    def _write(self, *what: Any) -> int:
        self.steps.append(Step(*what))
        return self.inputs + len(self.steps) - 1

    def add(self, a: Value, b: Value) -> Value:
        if a is None or b is None:
            return a if b is None else b
        return self._write("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        if b is None:
            return a
        return self._write("neg", b) if a is None else self._write("sub", a, b)

    def mul_add(self, a: Value, constant: float, b: Value) -> Value:
        """A c + b."""
        if a is None:
            return b
        return self._write("mul", a, -1, constant) if b is None else self._write("fma", a, b, constant)

    def turn(self, x: Point, eighths: float) -> Point:
        """Multiply by e^(-2 pi i eighths / 8): quarter turns exchange the parts."""
        re, im = x
        quarter, rest = divmod(eighths % 8, 2)
        for _ in range(int(quarter)):
            re, im = im, self.sub(None, re) if re is not None else None
        if rest:
            c, s = cos(pi * rest / 4), -sin(pi * rest / 4)
            re, im = (
                self.mul_add(re, c, self.mul_add(im, -s, None)),
                self.mul_add(re, s, self.mul_add(im, c, None)),
            )
        return re, im

    def dft(self, x: list[Point]) -> list[Point]:
        """All outputs in natural order."""
        n = len(x)
        if n == 1:
            return x
        a = next(f for f in (4, 2, *range(3, n + 1, 2)) if n % f == 0)
        if a == n:
            return self._short(x)
        b = n // a
        rows = [self._short([x[b * j1 + j2] for j1 in range(a)]) for j2 in range(b)]
        out: list[Point] = [(None, None)] * n
        for k1 in range(a):
            turned = [self.turn(rows[j2][k1], 8 * j2 * k1 / n) for j2 in range(b)]
            for k2, value in enumerate(self.dft(turned)):
                out[k1 + a * k2] = value
        return out

    def _short(self, x: list[Point]) -> list[Point]:
        """Of 2, 4, or an odd number of points."""
        if len(x) == 2:
            (a, b), (c, d) = x
            return [(self.add(a, c), self.add(b, d)), (self.sub(a, c), self.sub(b, d))]
        if len(x) == 4:
            even, odd = self._short(x[0::2]), self._short(x[1::2])
            (a, b), (c, d) = even[1], odd[1]
            first, third = self._short([even[0], odd[0]])
            return [
                first,
                (self.add(a, d), self.sub(b, c)),
                third,
                (self.sub(a, d), self.add(b, c)),
            ]
        return self._odd(x)

    def _odd(self, x: list[Point]) -> list[Point]:
        """X[k], X[n - k] = x0 + sum_j (x_j + x_(n-j)) cos -/+ i (x_j - x_(n-j)) sin, j and k up to (n - 1) / 2."""
        n, half = len(x), len(x) // 2
        sums, differences = [], []
        for j in range(1, half + 1):
            (a, b), (c, d) = x[j], x[n - j]
            sums.append((self.add(a, c), self.add(b, d)))
            differences.append((self.sub(a, c), self.sub(b, d)))
        re, im = x[0]
        for s in sums:
            re, im = self.add(re, s[0]), self.add(im, s[1])
        out: list[Point] = [(re, im)] * n
        for k in range(1, half + 1):
            re, im = x[0]
            turned_re: Value = None
            turned_im: Value = None
            for j in range(1, half + 1):
                angle = 2 * pi * (j * k % n) / n
                re, im = (self.mul_add(sums[j - 1][p], cos(angle), v) for p, v in enumerate((re, im)))
                turned_re = self.mul_add(differences[j - 1][0], sin(angle), turned_re)
                turned_im = self.mul_add(differences[j - 1][1], sin(angle), turned_im)
            out[k] = (self.add(re, turned_im), self.sub(im, turned_re))
            out[n - k] = (self.sub(re, turned_im), self.add(im, turned_re))
        return out


@cache
def dft_program(
    points: int,
    *,
    inverse: bool = False,
    live: int | None = None,
    wanted: int | None = None,
    skew: str = "",
) -> Program:
    """The transform of ``points`` points, of which the first ``live`` are not zero and the first ``wanted`` wanted.

    Inputs are the live real parts, then the live imaginary parts; outputs likewise, in natural order. ``skew``: the
    inputs ("in") or the outputs ("out") are turned by e^(-2 pi i j / (4 points)), j their number, or, for the inverse
    transform, by its conjugate.
    """
    live, wanted = live or points, wanted or points
    writer = _Writer(2 * live)
    given: list[Point] = [(i, live + i) if i < live else (None, None) for i in range(points)]
    if inverse:
        given = [(im, re) for re, im in given]
    if skew == "in":
        given = [writer.turn(x, 2 * j / points) for j, x in enumerate(given)]
    out = writer.dft(given)
    if skew == "out":
        out = [writer.turn(x, 2 * j / points) for j, x in enumerate(out)]
    if inverse:
        out = [(im, re) for re, im in out]
    kept = [p[part] for part in range(2) for p in out[:wanted]]
    return _pruned(2 * live, writer.steps, [v for v in kept if v is not None])


def _pruned(inputs: int, steps: list[Step], outputs: list[int]) -> Program:
    """Only the steps that outputs need, numbered anew."""
    needed = set(outputs)
    for i in range(len(steps) - 1, -1, -1):
        if inputs + i in needed:
            needed.update(v for v in (steps[i].a, steps[i].b) if v >= 0)
    number = {i: i for i in range(inputs)}
    kept: list[Step] = []
    for i, step in enumerate(steps):
        if inputs + i in needed:
            b = number[step.b] if step.b >= 0 else -1
            kept.append(Step(step.kind, number[step.a], b, step.constant))
            number[inputs + i] = inputs + len(kept) - 1
    return Program(inputs, tuple(kept), tuple(number[v] for v in outputs))


PRODUCT_TERMS: dict[str, tuple[tuple[int, int, bool], ...]] = {
    "": ((0, 0, False), (1, 1, True), (0, 1, False), (1, 0, False)),
    "left": ((0, 0, False), (1, 1, False), (0, 1, False), (1, 0, True)),
    "right": ((0, 0, False), (1, 1, False), (1, 0, False), (0, 1, True)),
}
"""Products a b of points, by the factor that is conjugated ("": none): parts of a and of b that are multiplied, and
whether the product is subtracted; two terms of the real part, then two of the imaginary part."""
