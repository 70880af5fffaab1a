"""What a submission found, told to the person."""

from producer.console import plural, say, warn
from producer.inputs.files import Skipped
from producer.staging import BadItems
from producer.submit import Submission, Submitted

MAX_SHOWN = 20


def announce(found: Submitted, skipped: Skipped, submission: Submission | None = None) -> None:
    tell_bad_items(found.bad)
    _tell_skipped(skipped)
    if found.models:
        asked = ", ".join(sorted(found.models))
        warn(f"rows ask for the model {asked}: the pair answers, and their metadata keeps what was asked")
    prompts = plural(found.total, "prompt")
    match found.how:
        case "new":
            reused = f", {found.reused:,} of them done before and reused" if found.reused else ""
            say(f"batch {found.batch_id}: {prompts}{reused}")
            if submission is not None:
                say(f"  pair {submission.pair.name}; sampling: {_sampling(submission)}")
        case "continued":
            say(f"batch {found.batch_id} of this source is unfinished: it is continued")
            if found.new or found.changed or found.gone:
                say(
                    f"  beside it {found.new:,} new, {found.changed:,} changed and {found.gone:,} removed: "
                    "submit again after its end to run them"
                )
        case "unchanged":
            say(f"nothing to do: all {prompts} are unchanged and succeeded in batch {found.batch_id}")
        case "dry run":
            say(f"{prompts} would be submitted")
        case _:
            say("nothing was submitted")


def _sampling(submission: Submission) -> str:
    """What is given, over the model's own where a worker has resolved it already."""
    defaults = submission.pair.defaults
    merged = {**(defaults or {}), **submission.sampling}
    parts = [f"{name} {value}" for name, value in sorted(merged.items())]
    if defaults is None:
        parts.append("else the model's own" if parts else "the model's own")
    return ", ".join(parts)


def tell_bad_items(bad: BadItems) -> None:
    for item in bad.kept[:MAX_SHOWN]:
        say(f"bad item: {item}")
    if bad.count > MAX_SHOWN:
        say(f"and {plural(bad.count - MAX_SHOWN, 'more bad item')}")


def _tell_skipped(skipped: Skipped) -> None:
    parts: list[str] = []
    if skipped.hidden:
        parts.append(f"{skipped.hidden:,} hidden")
    if skipped.excluded:
        parts.append(f"{skipped.excluded:,} by --include and --exclude")
    if skipped.folder_links:
        parts.append(f"{plural(skipped.folder_links, 'link')} to folders inside")
    if skipped.other_kinds:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(skipped.other_kinds.items()))
        parts.append(f"of other kinds: {kinds}")
    if parts:
        say("skipped files: " + "; ".join(parts))
