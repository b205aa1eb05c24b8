"""The command line: parses, prints, exits.  All else returns values or raises."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import Any

try:
    import click
except ImportError as error:
    if "PYTHONHOME" not in os.environ:
        raise
    print(
        f"nsysalign: with PYTHONHOME={os.environ['PYTHONHOME']} this Python lacks parts of itself: {error}\n"
        "  next: unset PYTHONHOME; for a program that needs it: nsysalign run -- env PYTHONHOME=... PYTHON SCRIPT.py",
        file=sys.stderr,
    )
    sys.exit(3)

from nsysalign import registry
from nsysalign.commandline.options import VIEW
from nsysalign.errors import Interrupted, NsysAlignError, OutputError
from nsysalign.record.processes import ENDING
from nsysalign.version import __version__

#: Exit code for a bug in nsysalign (sysexits.h: EX_SOFTWARE).
INTERNAL_ERROR = 70
_HELP = "check the path, its permissions and the free space; --debug shows where it happened"
_BUG = "a bug in nsysalign; the traceback is"
_REPORT = "this is a bug in nsysalign; the traceback above shows where"

#: Group of --help -> name -> a line of help; `commands.NAME` is imported when it is called.
GROUPS = {
    "Every day": {
        "run": "Profile a script or command and say where the time of its CUDA events went.",
        "analyze": "The same from an existing export, report or run directory.",
        "show": "Draw one interval in the terminal, piece by piece.",
        "report": "Write the HTML page of a stored analysis again.",
        "diff": "Compare two analyses label by label: what got slower, and why.",
        "demo": "Try it on a trace recorded on an H200; needs neither a GPU nor nsys.",
        "doctor": "Check what is installed, what is missing, what that costs and how to fix it.",
    },
    "Add-ons": {},
    "Export": {
        "export": "Export for Perfetto, Chrome's tracing, or as one JSON document.",
        "redact": "Make a copy of a trace to share, without private data.",
    },
}
COMMANDS = {name: words for group in GROUPS.values() for name, words in group.items()}


def _of_addons() -> dict[str, tuple[str, str, str]]:
    """Commands of add-ons: name -> (add-on, its function, one line of help)."""
    return {
        name: (addon, *command)
        for addon, declared in registry.addons().items()
        for name, command in declared.commands.items()
    }


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a hang-up end a command as Ctrl-C does: incomplete files are removed, and the
    exit status is 128 + the signal's number.  Ignored ones stay ignored."""
    came = [signal.SIGINT]

    def interrupt(number: int, _frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = {}
    for number in ENDING:  # SIGINT has a handler of Python's
        if signal.getsignal(number) is signal.SIG_DFL:
            with contextlib.suppress(ValueError):  # outside the main thread
                before[number] = signal.signal(number, interrupt)
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        ended = error if isinstance(error, Interrupted) else Interrupted("interrupted")
        ended.exit_code = 128 + came[-1]
        raise ended from None
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _say_in_brief(ctx: click.Context, sentence: str, next_step: str) -> None:
    """With --brief an error is a line of JSON, too: its reader reads stdout alone."""
    if ctx.meta.get(VIEW) == "brief":
        from nsysalign.brief import short

        click.echo(short(ctx.invoked_subcommand or "", "error", sentence, next_step))


def _of_system(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}"


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_of_addons()]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            return getattr(importlib.import_module(f"nsysalign.commands.{name}"), name)
        if name in (of_addons := _of_addons()):
            return registry.imported(*of_addons[name][:2])
        return None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            for near in difflib.get_close_matches(args[0], self.list_commands(ctx), 1):
                error.message += f" Did you mean {near}?"
            raise

    def invoke(self, ctx: click.Context) -> Any:
        with interruptible():
            try:
                return super().invoke(ctx)
            except NsysAlignError as error:
                _say_in_brief(ctx, error.message, error.next_step or "")
                raise
            except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
                raise
            except OSError as error:
                _say_in_brief(ctx, _of_system(error), _HELP)
                raise
            except Exception as error:
                sentence = f"internal error, {_BUG} on stderr: {type(error).__name__}: {error}"
                _say_in_brief(ctx, sentence.removesuffix(": "), "nsysalign doctor")
                raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        addons = [(name, words) for name, (_, _, words) in _of_addons().items()]
        for title, group in GROUPS.items():
            if rows := [*group.items()] or addons:
                with formatter.section(title):
                    formatter.write_dl(rows)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nsysalign")
@click.option(
    "--debug",
    is_flag=True,
    envvar="NSYSALIGN_DEBUG",
    help="Show tracebacks of expected errors as well.",
)
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """A profiler for CUDA timings: where the time of an interval went, to the nanosecond.

    \b
    Example:  nsysalign run train.py --epochs 1
              nsysalign run -v ...    all labels and findings;  --brief  one line of JSON
    """
    ctx.obj = {"debug": debug}


def main(arguments: list[str] | None = None) -> Any:
    """Entry point: expected errors become two lines on stderr and their exit code."""
    _stand_in_for_closed_streams()
    if sys.stderr is sys.__stderr__:  # a terminal or a file; not a test's
        raw = _Messages(2, "wb", closefd=False)
        sys.stderr = io.TextIOWrapper(
            raw, sys.stderr.encoding, "backslashreplace", write_through=True
        )
    if sys.stdout is sys.__stdout__:  # a terminal that cannot show a block shows a question mark
        sys.stdout.reconfigure(errors="replace")
    debug = "--debug" in (sys.argv[1:2] if arguments is None else arguments[:1]) or bool(
        os.environ.get("NSYSALIGN_DEBUG")
    )
    try:
        return cli.main(args=arguments, prog_name="nsysalign", standalone_mode=True)
    except NsysAlignError as error:
        if debug:
            raise
        if isinstance(error, Interrupted):
            click.echo(err=True)  # the terminal wrote ^C
        click.echo(f"nsysalign: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output has gone away (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if debug:
            raise
        click.echo(f"nsysalign: {OutputError(_of_system(error), _HELP)}", err=True)
        sys.exit(OutputError.exit_code)
    except Exception:  # 1 would mean a finding of --fail-on
        traceback.print_exc()
        click.echo(f"nsysalign: internal error: {_REPORT}", err=True)
        sys.exit(INTERNAL_ERROR)


class _Messages(io.FileIO):
    """Standard error, whose full disk or departed reader must change neither a run nor its
    status."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            super().write(data)
        return len(data)


def _stand_in_for_closed_streams() -> None:
    """After `>&-` the next file opened would become our stdout."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # closed on exec  # noqa: SIM115
            assert getattr(sys, name).fileno() == number


if __name__ == "__main__":
    main()
