"""producer submit"""

import json
from pathlib import Path
from typing import Any

import click

from producer.commands.common import Window, json_option
from producer.priorities import PRIORITIES


class KeyValue(click.ParamType[tuple[str, str]]):
    """One entry of metadata."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        key, separator, inner = str(value).partition("=")
        if not separator or not key:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        return key, inner


class TokenBias(click.ParamType[tuple[str, float]]):
    """One entry of logit_bias."""

    name = "token-id=bias"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        token, separator, bias = str(value).partition("=")
        try:
            return str(int(token)), float(bias if separator else "")
        except ValueError:
            self.fail(f"{value!r} is not ID=BIAS, such as 198=-100", param, ctx)


class ResponseFormat(click.ParamType[dict[str, Any]]):
    """`json`, or a file with a JSON schema or with OpenAI's response_format around one."""

    name = "response-format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if value in ("json", "text"):
            return {"type": "json_object" if value == "json" else "text"}
        try:
            content = json.loads(Path(value).read_text(encoding="utf-8"))
        except OSError as error:
            self.fail(
                f"{value} cannot be read: {error.strerror}; give json, or a JSON schema's file", param, ctx
            )
        except ValueError as error:
            self.fail(f"{value} is not JSON: {error}", param, ctx)
        if not isinstance(content, dict):
            self.fail(f"{value} should hold a JSON schema, an object", param, ctx)
        schema: dict[str, Any] = content
        if schema.get("type") in ("json_schema", "json_object", "regex", "text"):
            return schema
        return {"type": "json_schema", "json_schema": {"name": Path(value).stem, "schema": schema}}


EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


# Options of sampling, which apply to every prompt that has none of its own. -n is a prompt's.
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "stop", "stop_token_ids", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs"),
    *("response_format", "regex"),
)


@click.command("submit")
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="PATH...",
    type=click.Path(exists=True, allow_dash=True, path_type=Path),
)
@click.option("--pair", help="Target model and drafter, by name. Default: default_pair of the settings.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0 is greedy.  Default: the model's own.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Default: the model's own.")
@click.option("--top-k", type=click.IntRange(0), help="0 is off.  Default: the model's own.")
@click.option("--min-p", type=click.FloatRange(0, 1), help="0 is off.  Default: the model's own.")
@click.option("--max-tokens", type=click.IntRange(1), help="For each sample.  Default: the pair's.")
@click.option("-n", "n", type=click.IntRange(1, 128), default=1, show_default=True, help="Samples a prompt.")
@click.option("--min-tokens", type=click.IntRange(0), help="The text ends no earlier.")
@click.option("--stop", multiple=True, help="End where this text would come; may be given up to 16 times.")
@click.option(
    "--stop-token-id", "stop_token_ids", multiple=True, type=int, help="End where this token comes."
)
@click.option(
    "--repetition-penalty",
    type=click.FloatRange(0, 100, min_open=True),
    help="For tokens of prompt and output; 1 is off.  Default: the model's own.",
)
@click.option("--presence-penalty", type=click.FloatRange(-2, 2), help="For tokens of the output; 0 is off.")
@click.option("--frequency-penalty", type=click.FloatRange(-2, 2), help="For each occurrence in the output.")
@click.option(
    "--logit-bias",
    type=TokenBias(),
    multiple=True,
    help="Make a token likelier, or rarer, by -100 to 100; may be repeated.",
)
@click.option(
    "--logprobs",
    type=click.IntRange(0, 20),
    help="Store the tokens' log-probabilities and so many alternatives to each.",
)
@click.option(
    "--response-format",
    type=ResponseFormat(),
    metavar="FILE|json",
    help="The answer is JSON: any object, or what the JSON schema in FILE describes.",
)
@click.option("--regex", help="The whole answer matches this regular expression.")
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), help="Draw the same samples again.  Default: random."
)
@click.option("--priority", type=click.Choice(list(PRIORITIES)), default="normal", show_default=True)
@click.option("--completion-window", type=Window(), help="Expire what is not done in this time, such as 24h.")
@click.option("--name", help="A name for the batch, and for its source whatever its paths.")
@click.option("--metadata", type=KeyValue(), multiple=True, help="Kept with the batch; may be repeated.")
@click.option("--system", help="System message for prompts that have none of their own.")
@click.option(
    "--template", type=EXISTING_FILE, help="Jinja template that makes prompts of rows; fields are variables."
)
@click.option("--raw", is_flag=True, help="Give prompts to the model as they are, without its chat template.")
@click.option("--limit", type=click.IntRange(1), help="Only the first so many prompts.")
@click.option("--include", multiple=True, metavar="GLOB", help="Only files whose relative path matches.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="No files whose relative path matches.")
@click.option(
    "--on-error",
    type=click.Choice(["skip", "fail"]),
    default="skip",
    show_default=True,
    help="Whether the good items run where some are bad.",
)
@click.option("--fresh", is_flag=True, help="Generate everything again, whatever earlier batches hold.")
@click.option("--dry-run", is_flag=True, help="Read and check everything, store nothing.")
@click.option(
    "--wait/--no-wait",
    default=None,
    help="Whether to stay until the end.  Default: only without a broker configured.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, **options: Any) -> None:
    """Run prompts: every *.txt, *.md and *.prompt file is one, *.jsonl, *.json and *.csv hold one a row.

    PATH is a folder, a file, or - for JSONL on standard input. Rows have prompt or messages, or are OpenAI
    batch lines. Submitting the same again continues what is unfinished and reuses what is unchanged.

    Without a broker configured, a local one and a worker are started, and stopped at the end; with --no-wait
    they go on in the background until the batch has ended.

    Prints the batch's id. Exit codes: 0 all succeeded, 1 error, 2 usage, 3 prompts failed or bad items were
    left out, 4 cancelled or expired, 130 interrupted.

    \b
    Example:
      producer submit ./batch_inputs --max-tokens 200
      producer submit rows.jsonl --pair smollm2 --temperature 0.7 --seed 1 -n 4
      zcat rows.jsonl.gz | producer submit - --name nightly --no-wait
    """  # fmt: skip
    if Path("-") in options["paths"] and len(options["paths"]) > 1:
        raise click.UsageError("- (standard input) cannot be mixed with other paths")
    if options["raw"] and options["system"] is not None:
        raise click.UsageError("--system is a chat message; --raw prompts are no chat")
    from producer.submitting import run

    options["priority"] = PRIORITIES[options["priority"]]
    options["metadata"] = dict(options["metadata"])
    options["logit_bias"] = dict(options["logit_bias"])
    for name in ("stop", "stop_token_ids"):
        options[name] = list(options[name])
    sampling = {name: options.pop(name) for name in SAMPLING}
    ctx.exit(run(sampling=sampling, **options))
