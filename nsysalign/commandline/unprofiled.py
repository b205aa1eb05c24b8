"""A run without nsys, analysed and shown: for `run`, `analyze` and `demo`."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence

import click

from nsysalign.commandline.options import view
from nsysalign.commandline.outputs import console, deliver
from nsysalign.rundir import RunDirectory

#: The package of NVIDIA's repositories, by the system's package manager.
_INSTALL = {
    "apt-get": "sudo apt-get install nsight-systems-cli",
    "dnf": "sudo dnf install nsight-systems-cli",
    "zypper": "sudo zypper install nsight-systems-cli",
}
#: A longer command is not printed whole.
_MOST_WORDS = 6


def present(
    run: RunDirectory,
    *,
    command: Sequence[str] = (),
    quiet: bool = False,
    json_out: str | None = None,
    brief: bool = False,
) -> None:
    """Say what the event log of a run without nsys proves.  `command`: what was run, if that is
    known.  Raises EventLogError if there is no log."""
    from nsysalign.record.session import recover
    from nsysalign.show import unprofiled_run
    from nsysalign.unprofiled_run import analyze_run

    recover(run.path)
    found = analyze_run(run)
    if json_out:
        import orjson

        document = orjson.dumps(found.document(), option=orjson.OPT_SERIALIZE_NUMPY).decode()
        deliver(document, json_out)
    if quiet or json_out == "-":
        return
    if brief or view() == "brief":
        from nsysalign.brief import of_unprofiled, text

        name = click.get_current_context().info_name or ""
        again = f"nsysalign analyze {shlex.quote(str(run.path))}"
        click.echo(text(of_unprofiled(found, name, again)))
        return
    unprofiled_run.render(found, console(), breakdown(command))
    click.echo(f"log: {run.path}")


def breakdown(command: Sequence[str] = ()) -> str:
    """What to do for a breakdown: with nsys the same run; without it, how to install it here."""
    from nsysalign.errors import NsysError
    from nsysalign.record.nsys import find_nsys

    again = f"nsysalign run {shlex.join(command)}"
    if not command or len(command) > _MOST_WORDS:
        again = f"nsysalign run {shlex.join(command[:1]) or 'SCRIPT.py'} ..."
    try:
        find_nsys()
    except NsysError:
        manager = next((name for name in _INSTALL if shutil.which(name)), "")
        how = _INSTALL.get(manager, "install Nsight Systems")
        where = " (NVIDIA's repository)" if manager else ""
        return f"for the breakdown: {how}{where}, then {again}"
    return f"{again} (for the breakdown)"
