"""Options of a verb, written once: the fields of one frozen dataclass.

`cv.cure(backbone, "photos/", epochs=3)` and `clearvit cure MODEL photos/ --epochs 3` are both made
from `CureConfig`; a default, a type, a range and a help sentence stand in the dataclass only.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from clearvit.errors import OptionError, closest
from clearvit.progress import show_progress

Size = tuple[int, int]  # (height, width) in pixels
Precision = Literal["auto", "no", "bf16"]
Engine = Literal["local", "ray"]
DepthUnit = Literal["millimeters", "meters"]
PositionRule = Literal["bicubic-antialias", "bicubic", "bicubic-offset", "bilinear-antialias"]
ClipHead = Literal["clip", "maskclip", "naclip", "sclip", "clearclip"]

LARGEST = 2**31 - 1  # of any number without a limit of its own
LARGEST_SIDE = 16384  # pixels of an image that enters a network

C = TypeVar("C", bound="Options")
R = TypeVar("R")


class _FromPreset(type):
    """Lets a `preset` fill in every option that is not given when a config is built."""

    def __call__(cls, *values: Any, **given: Any) -> Any:
        presets: Mapping[Any, Mapping[str, Any]] = getattr(cls, "presets", {})
        return super().__call__(*values, **{**presets.get(given.get("preset"), {}), **given})

    @property
    def __signature__(cls) -> inspect.Signature:
        """What `help()` shows: the fields, not the arguments of `__call__` above."""
        own = inspect.signature(cls.__init__)  # type: ignore[misc]
        return own.replace(parameters=list(own.parameters.values())[1:])


@dataclass(frozen=True)
class Options(metaclass=_FromPreset):
    """Base of every config; checks choices and ranges when it is built.

    A config with presets has a field `preset: Literal[...] | None` and lists the values of each in
    the class variable `presets`; options that are given stand above those of the preset.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __post_init__(self) -> None:
        hints = option_types(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                value = tuple(value)
            elif get_origin(hints[field.name]) is tuple and not isinstance(value, tuple):
                value = (value,)  # unfreeze="all", not its letters
            object.__setattr__(self, field.name, value)
            check_value(field, hints[field.name], value)

    @classmethod
    def build(cls: type[C], given: Mapping[str, Any], config: C | None = None) -> C:
        """Build a config from options by name, or change one that exists.

        Args:
            given: Values by name; an unknown name is an error that names the closest.
            config: Where options come from that are not given; the defaults if None.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in names:
                raise OptionError(f"there is no option '{name}'.{closest(name, names)}", name)
        values = {} if config is None else {name: getattr(config, name) for name in names}
        preset = cls.presets.get(given.get("preset", ""), {})
        return cls(**{**values, **preset, **given})


def option(
    default: Any,
    help: str,
    *,
    panel: str = "Options",
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    shown: str | None = None,
    short: str | None = None,
    hidden: bool = False,
) -> Any:
    """Declare one option as a dataclass field.

    Args:
        default: Its default value.
        help: A sentence that makes sense without the option's name.
        panel: Heading under which `--help` lists it.
        minimum: Smallest value allowed.
        maximum: Largest value allowed.
        above: The value must be larger than this.
        below: The value must be smaller than this.
        shown: What `--help` shows as the default, where the value itself says little (None).
        short: Short form on the command line, such as "-o".
        hidden: Offered in Python only.
    """
    limits = {"minimum": minimum, "maximum": maximum, "above": above, "below": below}
    facts = {"help": help, "panel": panel, "shown": shown, "short": short, "hidden": hidden}
    return dataclasses.field(default=default, metadata={**facts, **limits})


def size_option(panel: str = "Options", shown: str = "the model's own") -> Any:
    """Declare the option that most verbs share: the size of the images."""
    help = "Image size in pixels, 518 or 448x672."
    return option(None, help, panel=panel, minimum=1, maximum=LARGEST_SIDE, shown=shown)


def precision_option(panel: str = "Options") -> Any:
    """Declare the option that verbs share which may compute in bfloat16; see `precision`."""
    help = (
        "Number format of the network: 'auto' is bf16 on GPUs and CPUs made for it (AVX-512 BF16,"
        " AMX), else float32, which is 'no'."
    )
    return option("auto", help, panel=panel)


def batch_option(default: int, panel: str = "Options") -> Any:
    """Declare how many images enter the network at once; only memory and speed depend on it."""
    return option(default, "Images per forward pass.", panel=panel, minimum=1)


def limit_option(default: int, panel: str = "Options") -> Any:
    """Declare how many of the images are looked at."""
    help = "Images at most, spread evenly over those given."
    return option(default, help, panel=panel, minimum=1)


def strict_option(panel: str = "Options") -> Any:
    """Declare what a file does that is no image."""
    return option(False, "Stop at the first bad file instead of listing it.", panel=panel)


def decoders_option(panel: str = "Options") -> Any:
    """Declare how many threads read images."""
    help, shown = "Threads that read images ahead.", "1 beside a CPU network, else 4"
    return option(None, help, panel=panel, minimum=1, shown=shown, hidden=True)


def engine_option(panel: str = "Options") -> Any:
    """Declare whether one machine works or many do."""
    help = "Where the work runs; 'ray' spreads it over a Ray cluster."
    return option("local", help, panel=panel)


def overwrite_option(panel: str = "Output") -> Any:
    """Declare what happens to a result that was made with other options."""
    return option(False, "Start again where another run of this kind stands.", panel=panel)


def option_types(kind: type) -> dict[str, Any]:
    """Give the type of every field, with names resolved."""
    return typing.get_type_hints(kind)


def choices_of(hint: Any) -> tuple[str, ...]:
    """Give the words of a `Literal`, also inside `| None` or a tuple; empty for other types."""
    if get_origin(hint) is Literal:
        return tuple(str(word) for word in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return tuple(word for part in get_args(hint) for word in choices_of(part))
    return ()


def check_value(field: dataclasses.Field[Any], hint: Any, value: Any) -> None:
    """Refuse a value that is none of the choices or out of range, naming what is allowed."""
    known = choices_of(hint)
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, str) and known and one not in known and not _takes_text(hint):
            raise OptionError(
                f"{field.name} is '{one}'; use {', '.join(known)}.{closest(one, known)}", field.name
            )
        if isinstance(one, (int, float)) and not isinstance(one, bool):
            if abs(one) > 1e300:  # too long to print
                one = math.inf if one > 0 else -math.inf
            problem = _out_of_range(one, field.metadata)
            if problem:
                raise OptionError(f"{field.name} is {one}; give {problem}.", field.name)


def _takes_text(hint: Any) -> bool:
    parts = get_args(hint)
    return hint is str or (
        get_origin(hint) in (Union, types.UnionType, tuple) and any(map(_takes_text, parts))
    )


def _out_of_range(value: float, limits: Mapping[str, Any]) -> str:
    low, high = limits.get("minimum"), limits.get("maximum")
    above, below = limits.get("above"), limits.get("below")
    if high is None and below is None and abs(value) > LARGEST:
        high = LARGEST
    finite = math.isfinite(value)
    too_low = (low is not None and not value >= low) or (above is not None and not value > above)
    too_high = (high is not None and value > high) or (below is not None and value >= below)
    if finite and not (too_low or too_high):
        return ""
    wanted = [
        *(["a finite number"] if not finite else []),
        *([f"at least {low:g}"] if low is not None else []),
        *([f"more than {above:g}"] if above is not None else []),
        *([f"at most {high:g}"] if high is not None else []),
        *([f"less than {below:g}"] if below is not None else []),
    ]
    return " and ".join(wanted)


def with_options(kind: type[C]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let a verb take the fields of a config as flat keywords, or a whole `config=`.

    The verb itself is written with one `config` parameter. Its signature and its docstring, as
    `help()` shows them, list every option. A verb with a `progress` parameter shows a bar, or
    lines in a log, when the caller gives none.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        own = inspect.signature(function)

        @functools.wraps(function)
        def verb(*arguments: Any, config: C | None = None, **keywords: Any) -> R:
            rest = {name: keywords.pop(name) for name in list(keywords) if name in own.parameters}
            chosen = kind.build(keywords, config)
            if "progress" not in own.parameters or rest.get("progress") is not None:
                return function(*arguments, config=chosen, **rest)
            with show_progress() as progress:
                return function(*arguments, config=chosen, **{**rest, "progress": progress})

        verb.__signature__ = _flat_signature(own, kind)  # type: ignore[attr-defined]
        verb.__doc__ = f"{inspect.getdoc(function)}\n\n{describe_options(kind)}"
        return verb

    return decorate


def describe_options(kind: type[Options]) -> str:
    """List every option with its sentence and default, for a docstring."""
    lines = [
        f"    {field.name}: {field.metadata['help']} Default: {show_default(field)}."
        for field in dataclasses.fields(kind)
    ]
    return "\n".join(["Options:", *lines])


def show_default(field: dataclasses.Field[Any]) -> str:
    """Write a default as it would be typed, or the words that stand for it."""
    return str(field.metadata.get("shown") or show_value(field.default))


def show_value(value: Any) -> str:
    """Write a value as it would be typed on the command line."""
    if isinstance(value, tuple):
        return ",".join("all" if one is None else show_value(one) for one in value) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flat_signature(own: inspect.Signature, kind: type[Options]) -> inspect.Signature:
    parameters = list(own.parameters.values())
    config = own.parameters["config"].replace(default=None, annotation=f"{kind.__name__} | None")
    flat = [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type
        )
        for f in dataclasses.fields(kind)
        if f.name not in own.parameters
    ]
    index = [one.name for one in parameters].index("config")
    return own.replace(parameters=[*parameters[:index], *flat, config, *parameters[index + 1 :]])
