"""Commands made from functions and configs: every option is a field of a dataclass.

A command is a function whose parameters are typer arguments, and dataclasses of options. Each such
dataclass becomes one command-line option per field; the function receives it built and checked.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from clearvit.cli.app import app
from clearvit.cli.arguments import Run
from clearvit.cli.console import prepare
from clearvit.errors import OptionError
from clearvit.files import check_place
from clearvit.option_text import PLAIN, metavar_of, parse
from clearvit.options import Options, option_types, show_default, show_value

Command = Callable[..., None]


def command(name: str, to: typer.Typer = app) -> Callable[[Command], Command]:
    """Add a function to the command line, or to a group of commands, under a name."""

    def register(function: Command) -> Command:
        own = inspect.signature(function, eval_str=True)
        kinds = {key: p.annotation for key, p in own.parameters.items() if is_options(p.annotation)}

        @functools.wraps(function)
        def run(context: typer.Context, **values: Any) -> None:
            given = {key for key in values if _was_given(context, key)}
            built = {key: _build(kind, values, given) for key, kind in kinds.items()}
            prepare(next((one.threads for one in built.values() if isinstance(one, Run)), None))
            if "://" not in str(values.get("out") or "://"):
                check_place(Path(values["out"]))  # of every verb, before a model is loaded
            rest = {key: values[key] for key in own.parameters if key not in kinds}
            function(**rest, **built)

        parameters = [_context()]
        for key, parameter in own.parameters.items():
            parameters += options_of(kinds[key]) if key in kinds else [parameter]
        signature = own.replace(parameters=[_by_name(p) for p in parameters])
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        vars(run).update(__signature__=signature, configs=tuple(kinds.values()))
        to.command(name)(run)
        return function

    return register


def is_options(kind: Any) -> bool:
    """Tell whether a parameter holds options."""
    return isinstance(kind, type) and issubclass(kind, Options)


def options_of(kind: type[Options]) -> list[inspect.Parameter]:
    """Make one parameter of a command for each field that is not hidden."""
    hints = option_types(kind)
    fields = [field for field in dataclasses.fields(kind) if not field.metadata.get("hidden")]
    return [_parameter(field, hints[field.name]) for field in fields]


def _parameter(field: dataclasses.Field[Any], hint: Any) -> inspect.Parameter:
    """Make an option: plain types and choices are typer's, all others are read by `parse`."""
    facts = field.metadata
    flag = f"--{field.name.replace('_', '-')}"
    names = [flag, *([facts["short"]] if facts["short"] else [])]
    shown: dict[str, Any] = {"help": facts["help"], "rich_help_panel": facts["panel"]}
    kind, default = hint, field.default
    if default is None or default == ():
        shown["show_default"] = show_default(field)
    if default is None:
        kind = _without_none(hint)
    if kind is bool and default is False:
        shown["show_default"] = False
    elif kind is bool:
        names = [f"{flag}/--no-{flag[2:]}"]
    shown["metavar"] = "" if kind is bool else metavar_of(kind)  # a flag takes no value
    if kind not in PLAIN and get_origin(kind) is not Literal:
        shown["parser"] = _parser(kind)
        kind, default = str, None if default is None else show_value(default)
    if kind in (int, float):
        shown |= {"min": facts["minimum"], "max": facts["maximum"]}
    annotation: Any = kind | None if default is None else kind
    annotation = Annotated[annotation, typer.Option(*names, **shown)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, keyword, default=default, annotation=annotation)


def _without_none(hint: Any) -> Any:
    rest = tuple(part for part in get_args(hint) if part is not type(None))
    return rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007 - made at run time


def _parser(kind: Any) -> Callable[[Any], Any]:
    """Give the reader of a type; a function, since older versions of typer ask for its name."""

    def read(text: Any) -> Any:
        try:
            return parse(kind, text)
        except OptionError as error:
            raise typer.BadParameter(str(error)) from error

    return read


def _build(kind: type[Options], values: dict[str, Any], given: set[str]) -> Options:
    names = [field.name for field in dataclasses.fields(kind)]
    try:
        return kind.build({name: values[name] for name in names if name in given})
    except OptionError as error:
        hint = f"--{error.option.replace('_', '-')}" if error.option else None
        raise typer.BadParameter(str(error), param_hint=hint) from error


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def _context() -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter("context", kind, annotation=typer.Context)


def _by_name(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
