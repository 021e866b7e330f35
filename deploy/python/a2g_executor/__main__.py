"""``python -m a2g_executor``: becomes the program ``a2g-executor`` that was installed with this package."""

import os
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

NAME = "a2g-executor"


def candidates():
    """Where installers put a wheel's programs, the most certain place first."""
    try:
        # What the installer has recorded.
        recorded = metadata.files(NAME) or []
    except metadata.PackageNotFoundError:
        recorded = []
    yield from (Path(file.locate()) for file in recorded if file.name == NAME)
    yield Path(sysconfig.get_path("scripts")) / NAME
    # `pip install --target` moves the programs after it has recorded them.
    yield Path(__file__).parent.parent / "bin" / NAME


def main():
    program = next((str(path.resolve()) for path in candidates() if path.is_file()), None)
    if program is None:
        places = ", ".join(sorted({str(path.parent) for path in candidates()}))
        sys.exit(
            f"error: the package {NAME} is incomplete: its program is in none of {places}; "
            f"reinstall it, such as with `pip install --force-reinstall {NAME}`"
        )
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
