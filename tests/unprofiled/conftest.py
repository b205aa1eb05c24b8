from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick",
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
