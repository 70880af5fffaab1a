"""A batch's priority as people say it; Redis's own, where 0 comes first, never reaches them."""

PRIORITIES = {"low": 0, "normal": 1, "high": 2}


def priority_name(priority: int) -> str:
    return next(name for name, number in PRIORITIES.items() if number == priority)
