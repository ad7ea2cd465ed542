"""Where the repository and the shared test files are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository."""

CERTIFICATES = ROOT / "tests" / "certificates"
"""Certificates and keys for TLS tests, in PEM format."""
