"""The name of the tool, and the packages that it has. `tool add --package` replaces this file."""

NAME = "run_python"
PACKAGES = "no other packages"
# The archive of the packages, beside this file.
ARCHIVE = None
