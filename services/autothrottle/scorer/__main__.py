"""What spark-submit runs: the same as `autothrottle score`."""

import sys

from autothrottle.scorer.command import main

if __name__ == "__main__":
    sys.exit(main())
