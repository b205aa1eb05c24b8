"""`nsysalign.marks`, the public name of the add-on for clock marks inside kernels."""

import sys

try:
    from nsysalign.addons import marks
except ImportError as error:  # an installation without the folder `addons`
    raise ImportError("nsysalign.marks needs the add-on in nsysalign/addons/marks") from error

sys.modules[__name__] = marks
