"""The A2G executor as a Python package: the program itself is beside Python's own, as ``a2g-executor``."""
