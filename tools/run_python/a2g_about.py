"""The name of the tool, and the packages that it has. `tool add --package` puts another file in the place of this one."""

NAME = "run_python"
PACKAGES = "no other packages"
# The archive of the packages, beside this file.
ARCHIVE = None
