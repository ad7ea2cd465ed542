"""The parser of the scorer's commands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autothrottle_client.argument_parser import SuggestingParser as ScorerParser
else:
    try:
        from autothrottle_client.argument_parser import SuggestingParser as ScorerParser
    except ImportError:  # a job of spark-submit gets the modules of the scorer only
        ScorerParser = argparse.ArgumentParser

__all__ = ["ScorerParser"]
