"""Pages as HTML, made of templates and of what the views return."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

import rmq_spark
from rmq_spark.console.console import Console
from rmq_spark.console.drawing import bar, rate_line
from rmq_spark.console.pages.topic_views import SPANS, cells_of
from rmq_spark.topics.topic_types import TOPIC_TYPES
from rmq_spark.views.rates import Rate
from rmq_spark.views.shown_texts import age_text

_THOUSAND, _MILLION = 10_000, 10_000_000


def page_of(
    console: Console, request: Request, template: str, shown: Mapping[str, Any], status: int = 200
) -> HTMLResponse:
    """Return a page. shown: what its view has returned."""
    user = request.scope.get("user")
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    text = _environment.get_template(template).render(
        **shown,
        path=request.url.path,
        here=without_note(address),
        note=console.notes.find(request.query_params.get("note", "")),
        user=user,
        named_users=bool(console.settings.tokens),
        mark=console.sessions.form_mark(user) if user else "",
        allow_changes=console.settings.allow_changes,
        version=rmq_spark.__version__,
    )
    return HTMLResponse(text, status)


def without_note(address: str) -> str:
    """Return an address without the name of a note."""
    path, _, query = address.partition("?")
    kept = "&".join(part for part in query.split("&") if part and not part.startswith("note="))
    return f"{path}?{kept}" if kept else path


def count(number: float | None) -> str:
    """Format a number for a table: 9,876, then 98.7k and 98.7M."""
    if number is None:
        return ""
    if number >= _MILLION:
        return f"{number / 1_000_000:,.1f}M"
    if number >= _THOUSAND:
        return f"{number / 1000:,.1f}k"
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def size(number: int | None) -> str:
    """Format a number of bytes."""
    if number is None:
        return ""
    for unit, of in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= of:
            return f"{number / of:,.1f} {unit}"
    return f"{number:,} B"


def moment(text: str | int | None) -> Markup:
    """Format a time as an element, whose text the page changes to the viewer's time zone."""
    if text is None:
        return Markup("")
    if isinstance(text, int):  # beyond Python's calendar
        return Markup("{} ms").format(text)
    plain = datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S +00:00")
    return Markup('<time datetime="{}">{}</time>').format(text, plain)


def address(path: str, **query: Any) -> str:
    """Return an address with the parameters that are not empty."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def of_topic(name: str, *parts: str) -> str:
    """Return the path of a topic's page."""
    return "/".join(("/topics", quote(name, safe=""), *parts))


def line_of(points: list[dict[str, float]]) -> Markup:
    """Draw the rates of a group."""
    return rate_line(
        [
            Rate(-point["secondsAgo"], point["inPerSecond"], point["outPerSecond"])
            for point in points
        ]
    )


def values_of(topic_type: str) -> list[dict[str, str]]:
    """Return the values that messages of a type take, for the fields of a form."""
    return [
        {"keyword": of.keyword, "name": of.value_name, "accepted": of.parser.accepted_plain}
        for of in TOPIC_TYPES[topic_type].values
    ]


_environment = Environment(
    loader=PackageLoader("rmq_spark.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(count=count, size=size, age=age_text, moment=moment)
_environment.globals.update(
    address=address,
    bar=bar,
    cells_of=cells_of,
    line_of=line_of,
    of_topic=of_topic,
    spans=SPANS,
    values_of=values_of,
    needs_value=lambda topic_type: TOPIC_TYPES[topic_type].requeue_value is None,
)
