"""`nsysalign`, and `python -m nsysalign`."""

import _signal

# a Ctrl-C while modules are loaded ends us as it ends any other program, without a traceback
_LISTENS = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
if _LISTENS:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from nsysalign.cli import main  # noqa: E402

if _LISTENS:
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)

if __name__ == "__main__":
    main()
