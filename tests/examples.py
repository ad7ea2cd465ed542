"""How many examples hypothesis tries in `make test`, and in `make test-all`."""

from hypothesis import settings


def examples(few: int, many: int) -> int:
    """Return `few`; or `many` with the profile of `make test-all`, which tests/conftest.py loads first."""
    return many if settings.get_current_profile_name() == "make-test-all" else few
