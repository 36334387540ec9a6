"""Entry point of the `outrider` script and of `python -m outrider`, light, so that an interrupt finds it at once."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; an interrupt while its modules are still being imported is one line too."""
    try:
        from outrider.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("outrider: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
