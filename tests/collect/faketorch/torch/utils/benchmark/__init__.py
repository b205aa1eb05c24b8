from .utils.timer import Timer  # noqa: F401
