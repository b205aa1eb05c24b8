"""Starts the probe in every Python process below `nsysalign run`.

This folder is on PYTHONPATH during a run and holds nothing else, so that the script cannot import
our names by accident.  The folder is removed from `sys.path` at once and stays in the environment,
so that child processes start here as well.  A `sitecustomize` of the user's own, which this one
hides, is imported afterwards.
"""


def _start():  # no annotations: Python 2 reads this as well
    import os
    import sys

    our_folder = os.path.dirname(os.path.abspath(__file__))
    run_dir = os.environ.get("NSYSALIGN_DIR")
    # ours is absolute; resolving others fails if the working directory was deleted
    sys.path[:] = [p for p in sys.path if not os.path.isabs(p) or os.path.normpath(p) != our_folder]
    sys.path_importer_cache.pop(our_folder, None)
    if not run_dir or sys.version_info < (3, 10):  # also read by a child in Python 2
        return
    try:
        # the user's interpreter may not have nsysalign: load the probe by its path, under a name of
        # its own
        import _imp
        import builtins
        from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader

        our_builtins = dict(vars(builtins))

        class Loader(SourceFileLoader):
            """Gives our code file names that coverage tools ignore, as they do "<string>", and the
            built-in functions as they are now: programs replace some."""

            def get_code(self, fullname):
                code = super().get_code(fullname)
                name = "<nsysalign/probe/" + os.path.basename(self.path) + ">"
                _imp._fix_co_filename(code, name)
                return code

            def exec_module(self, module):
                module.__dict__.pop("__file__", None)  # `trace` prints no lines of such modules
                module.__dict__["__builtins__"] = our_builtins
                super().exec_module(module)

        for method in (Loader.get_code, Loader.exec_module):
            _imp._fix_co_filename(method.__code__, "<nsysalign/probe_path/sitecustomize.py>")
        folder = os.path.join(os.path.dirname(our_folder), "probe")
        sys.path_importer_cache[folder] = FileFinder(folder, (Loader, [".py"]))
        file = os.path.join(folder, "__init__.py")
        # by hand: importlib.util would cost every Python process 2.5 ms
        spec = ModuleSpec("_nsysalign_probe", Loader("_nsysalign_probe", file), origin=file)
        spec.submodule_search_locations = [folder]
        module = type(sys)(spec.name)
        module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.name
        module.__path__ = [folder]
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        module.start(run_dir)
    except BaseException as error:  # SystemExit here would be fatal for the interpreter
        sys.modules.pop("_nsysalign_probe", None)
        try:
            with open(os.path.join(run_dir, "raw", str(os.getpid()) + ".errors"), "a") as file:
                file.write("!probe did not start: " + type(error).__name__ + "\n    " + str(error))
        except BaseException:
            pass


def _chain():
    import sys

    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401  the user's own, now that our folder is gone from sys.path
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise  # the user's own import error must surface as it would without us
        if ours is not None:
            sys.modules["sitecustomize"] = ours


if __name__ == "sitecustomize":  # else loaded by `nsysalign.recording`, which starts it
    _start()
    _chain()
