from __future__ import annotations

from pathlib import Path

import pytest

from autothrottle_client.files import write_text


def test_a_file_is_replaced_and_gets_the_given_mode(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    for text in ("a long text", "short"):
        write_text(path, text, mode=0o644)
    assert path.read_text("utf-8") == "short"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_symbolic_link_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    """topicmappr wrote `orders.json` through a link that another user had put into a shared directory.

    The user's own file behind the link was replaced by a partition map, and made readable by all.
    """
    target, link = tmp_path / "precious", tmp_path / "orders.json"
    target.write_text("precious")
    link.symlink_to(target)
    with pytest.raises(OSError, match="it is a symbolic link"):
        write_text(link, "{}", mode=0o644)
    assert target.read_text("utf-8") == "precious"
