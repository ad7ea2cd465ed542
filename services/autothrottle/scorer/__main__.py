"""Entry point for spark-submit; equivalent to `autothrottle score`."""

import sys

from autothrottle.scorer.command import main

if __name__ == "__main__":
    sys.exit(main())
