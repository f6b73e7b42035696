"""The closed forms of linear layers' counts are what the kernels' CPU body counts, exactly."""

from hypothesis import example, given, settings
from test_linear import Case, cases

from costmodel.linear_counts import of_product
from kernels_numba.linear_run import run_cpu


@settings(max_examples=40)
@given(cases())
@example(Case("flat", 0, 3, 9, 37, 263, aligned_x=False))
@example(Case("flat", 1, 1, 8, 130, 520))
@example(Case("flat", 2, 2, 8, 5, 7))
@example(Case("gemv", 0, 2, 4, 37, 7, "bf16", aligned_w=False))
@example(Case("gemv", 1, 3, 2, 37, 2049))
@example(Case("full", 1, 3, 33, 65, 200, "bf16", aligned_w=False))
@example(Case("full", 0, 1, 64, 64, 128))
@example(Case("full", 2, 1, 70, 128, 256))
@example(Case("full", 3, 2, 33, 80, 511, "bf16", aligned_x=False))
@example(Case("full", 4, 1, 31, 141, 384))
@example(Case("full", 3, 2, 33, 304, 511))
@example(Case("full", 4, 1, 5, 144, 257, "bf16"))
@example(Case("full", 5, 1, 64, 141, 384))
@example(Case("full", 6, 1, 100, 141, 384, "bf16", aligned_x=False, aligned_w=False))
def test_counts_are_those_of_the_cpu_body(case: Case) -> None:
    product = case.product
    _, counters = run_cpu(product, *case.data())
    expected = counters.as_dict()
    for name in ("global_read_bytes", "global_written_bytes"):
        expected[name] = {key: value for key, value in expected[name].items() if value}
    found = vars(of_product(product))
    assert found == {name: expected[name] for name in found}
    assert not any(value for name, value in expected.items() if name not in found)
