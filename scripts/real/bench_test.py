"""For pytest-benchmark."""


def test_sum(benchmark):
    assert benchmark(sum, range(1000)) == 499500


def test_sort(benchmark):
    assert benchmark.pedantic(sorted, args=([3, 1, 2],), rounds=50, iterations=10) == [1, 2, 3]
