"""For pytest-benchmark, on the GPU."""

from timed import pairs


def test_pairs(benchmark):
    assert benchmark.pedantic(pairs, args=(5,), rounds=4, iterations=2)
