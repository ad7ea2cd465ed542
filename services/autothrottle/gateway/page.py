"""The page at /: all routes with descriptions, as plain HTML without scripts or external resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from autothrottle import __version__
from autothrottle.gateway import legacy
from autothrottle.gateway.rest import Binding

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td{border-top:1px solid #8886;padding:.4rem .8rem .4rem 0;"
    "vertical-align:top}code{white-space:nowrap}:root{color-scheme:light dark}"
)


def page(routes: Sequence[Binding], descriptions: Mapping[str, str]) -> str:
    """Return the page.

    Args:
        routes: the routes of /v1.
        descriptions: full name of a proto element -> its comment.
    """
    json_routes = [(b.verb, b.path, descriptions.get(b.method.full_name, "")) for b in routes]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>autothrottle</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>autothrottle {escape(__version__)}</h1>"
        f"<p>Replication throttles for Kafka reassignments. Rates under <code>/v1</code> are bytes per second as "
        f"strings; rates of the text routes are whole MB/s. An error has a status, a code and a message.</p>"
        f'<h2>JSON</h2><p>Machine-readable: <a href="/openapi.json">/openapi.json</a>.</p>{_table(json_routes)}'
        f"<h2>Text</h2><p>The routes of the original autothrottle.</p>{_table(legacy.ROUTES)}"
        f"</body></html>\n"
    )


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    return "<table>" + "".join(_row(*row) for row in rows) + "</table>"


def _row(verb: str, path: str, text: str) -> str:
    shown = f"<code>{escape(path)}</code>"
    link = f'<a href="{escape(path)}">{shown}</a>' if verb == "GET" and "{" not in path else shown
    return f"<tr><td>{escape(verb)}</td><td>{link}</td><td>{escape(text)}</td></tr>"
