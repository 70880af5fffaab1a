"""What several commands take."""

import re
from datetime import timedelta
from typing import Any

import click

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
LONGEST = timedelta(days=36_525)


class Window(click.ParamType[timedelta]):
    """A time as 24h, 90m, 7d or 3600s."""

    name = "window"

    def __init__(self, zero: bool = False) -> None:
        """`zero`: whether no time at all is one."""
        self._pattern = re.compile(r"(\d{1,7})([smhd])" if zero else r"([1-9]\d{0,6})([smhd])")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        match = self._pattern.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is no time; write 24h, 90m, 7d or 3600s", param, ctx)
        window = timedelta(**{UNITS[match[2]]: int(match[1])})
        if window > LONGEST:
            self.fail(f"{value!r} is longer than a century", param, ctx)
        return window


batch_argument = click.argument("batch", metavar="BATCH")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
