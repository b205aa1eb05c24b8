import os

from hypothesis import HealthCheck, Phase, settings
from thorough import part

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
# the suite fails fast; the hunt shrinks what it finds, which can take minutes
QUICK = (Phase.explicit, Phase.generate)
EXAMPLES = part(4, 12)
settings.register_profile("suite", max_examples=EXAMPLES, derandomize=True, phases=QUICK, **COMMON)
settings.register_profile(
    "hunt", max_examples=400, print_blob=True, **COMMON
)  # HYPOTHESIS_PROFILE=hunt pytest ...
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
