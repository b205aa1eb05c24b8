import os

from hypothesis import HealthCheck, Phase, settings
from thorough import part

#: `NSYSALIGN_FUZZ=100 pytest tests/fuzz` tries hundreds of times as much, other things each time, and
#: shrinks what it finds.
TIMES = int(os.environ.get("NSYSALIGN_FUZZ", "1"))
COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
settings.register_profile(
    "fuzz",
    max_examples=part(3, 5) * TIMES,
    derandomize=TIMES == 1,
    phases=(Phase.explicit, Phase.generate) if TIMES == 1 else tuple(Phase),
    print_blob=TIMES > 1,
    **COMMON,
)
FUZZ = settings.get_profile("fuzz")
