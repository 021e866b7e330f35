"""Packages below /packages, which are read while the component is made, from the archive that `tool add --package` puts
beside this module. Their compiled form is there too, because compiling takes most of the time of an import."""

import _frozen_importlib_external as files_importer
import os
import sys

import a2g_about
import a2g_files


def load():
    if a2g_about.ARCHIVE is None:
        return
    # Not before the files in memory are there: with it come modules that keep some of the functions which they replace.
    import warnings
    import zipfile

    path = os.path.join(os.path.dirname(__file__), a2g_about.ARCHIVE)
    with zipfile.ZipFile(path) as archive, warnings.catch_warnings():
        # About the sources of others.
        warnings.simplefilter("ignore")
        for name in archive.namelist():
            add(f"{a2g_files.PACKAGES}/{name}", archive.read(name))
    sys.path.append(a2g_files.PACKAGES)


def add(path, data):
    a2g_files.add(path, data)
    if not path.endswith(".py"):
        return
    try:
        code = compile(data, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        # A template, or a module for another Python: a program that imports it gets the error.
        return
    # The form whose source is never compared with it.
    compiled = files_importer._code_to_hash_pyc(code, bytes(8), False)
    a2g_files.add(files_importer.cache_from_source(path), bytes(compiled))
