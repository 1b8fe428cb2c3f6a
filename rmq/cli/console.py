"""Code shared by all commands: global options, output, and errors with their exit codes."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Concatenate, ParamSpec, TextIO, TypeAlias, TypeVar, cast, get_args

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table, box
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo, ParameterInfo

from rmq import DeadMessage, FoundMessage, JsonFormatter, RmqClient, Topic, TopicType
from rmq.cli.options import with_own_parser
from rmq.cli.settings_file import SERVICES, variable_of
from rmq.errors import EnsembleMismatchError, FencedError, InvalidValueError, RmqError, UnknownTopicError
from rmq.spi import URL_VARIABLE, chosen_url, safe_lines, shown
from rmq.views.columns import Column

FAILED, BAD_INPUT = 1, 2
"""Exit codes for a failure, and for invalid usage or input."""

DEADLINE_S = 5.0
"""Seconds for which a command retries a call. Shorter than in the library, since a person waits for the result."""

_MOST_ERROR_CHARACTERS = 2_000
_PIPE_WIDTH = 100_000
P = ParamSpec("P")
T = TypeVar("T")

Columns: TypeAlias = Mapping[str, Callable[[T], str | Text]]
"""Columns of a table: name, as in `rmq.views.columns` -> the function that returns the escaped cell of a value."""

_TONES = {"": "", "warn": "yellow", "bad": "red"}

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="URL of Redis. Other users can see it in the process list: use RMQ_URL for a URL with a password.  "
        "\\[default: RMQ_URL]",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: one document, or one line per message.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log to stderr, and show tracebacks.")]


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The options that are allowed before and after the command; see `Url`, `Json` and `Verbose`."""

    url: str | None = None
    json: bool = False
    verbose: bool = False


class Session:
    """A run of a command: its global options and its output. Results go to stdout, everything else to stderr."""

    def __init__(self, options: GlobalOptions) -> None:
        self.options = options
        self.json = options.json
        plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
        whole = not is_terminal(sys.stdout) and "COLUMNS" not in os.environ  # a program reads it: no cell is cut
        size: dict[str, Any] = {"width": _PIPE_WIDTH, "height": 25} if whole else {}  # both: rich ignores one alone
        self.out = Console(**size, **plain)
        self.err = Console(stderr=True, **plain)

    def client(self, deadline_s: float = DEADLINE_S) -> RmqClient:
        """Return a client; print a note if its Redis is temporary.

        Args:
            deadline_s: Seconds to retry a call before it fails.

        Raises:
            InvalidUrlError: Neither --url nor RMQ_URL is given, or the URL is invalid.
        """
        if chosen_url(self.options.url).temporary:
            how = "RMQ_URL or --url" if self.options.url is None else "--url"
            self.note(f"using a temporary Redis, which ends with this command; {how} selects another one")
        return RmqClient(self.options.url, deadline_s=deadline_s)

    def pass_url_on(self) -> None:
        """Set RMQ_URL to the URL of the option or the settings file, for clients of a program that name no URL."""
        if self.options.url is not None:
            os.environ[URL_VARIABLE] = self.options.url
            os.environ.pop(f"{URL_VARIABLE}_FILE", None)

    @contextmanager
    def opened(self, topic: str) -> Generator[tuple[RmqClient, Topic]]:
        """Context manager that yields a client and the registered definition of a topic."""
        with self.client() as client:
            yield client, client.topic(topic)

    def note(self, text: str) -> None:
        """Print a note on stderr."""
        self.err.print(Text(shown(text, _MOST_ERROR_CHARACTERS), style="dim"), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning on stderr."""
        self.err.print(Text(shown(text, _MOST_ERROR_CHARACTERS), style="yellow"), soft_wrap=True)

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Print a line of the result. Each part is a text or (text, style), escaped by the caller."""
        self.out.print(Text.assemble(*parts), soft_wrap=True)

    def message(self, content: bytes, facts: Sequence[str], carried: tuple[str, str] | None) -> None:
        """Print a message with facts about it. `carried` is the label and the escaped text of its value, if any."""
        self.line((shown(content), "bold"))
        self.line((f"  {', '.join(facts)}", "dim"))
        if carried is not None:
            self.line((f"  {carried[0]} ", "dim"), carried[1])

    def document(self, value: object) -> None:
        """Print a JSON value on one line, in ASCII, so that payloads cannot send control codes to a terminal."""
        sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
        sys.stdout.flush()

    def result(self, document: object, text: str) -> None:
        """Print a result: `document` with --json, else `text`, which the caller has escaped."""
        if self.json:
            self.document(document)
        else:
            self.line(text)

    def overview(self, document: object, view: RenderableType | None, empty: str) -> None:
        """Print a result: `document` with --json, else `view`, or the note `empty` if `view` is `None`."""
        if self.json:
            self.document(document)
        elif view is not None:
            self.out.print(view)
        else:
            self.note(empty)

    def rows(
        self,
        found: Iterable[T],
        document: Callable[[T], object],
        columns: Columns[T],
        empty: str,
        limit: int = 0,
    ) -> None:
        """Print values: with --json each as a line of JSON, else as the rows of a table.

        Args:
            found: The values to print.
            document: Returns the JSON document of a value.
            columns: Columns of the table.
            empty: Note to print instead of a table without rows.
            limit: Maximum number of values to print, 0 for all. If there are more, a note is printed.
        """
        values = iter(found)
        first = itertools.islice(values, limit or None)
        if self.json:
            for value in first:
                self.document(document(value))
        else:
            table = table_of(columns, first)
            self.overview(None, table if table.row_count else None, empty)
        if limit and next(values, None) is not None:
            self.note(f"only the first {limit:,} are shown; --limit N shows more, --limit 0 shows all")

    def drop(
        self,
        yes: bool,
        count: Callable[[], int],
        agreed: Callable[[int], bool],
        purge: Callable[[Callable[[int], None]], int],
    ) -> None:
        """Delete messages permanently, and print their number.

        Args:
            yes: Do not ask for confirmation.
            count: Returns the number of messages.
            agreed: Asks for confirmation. It is passed the number of messages.
            purge: Deletes the messages. It is passed a function to report progress to.

        Raises:
            InvalidValueError: Confirmation is required, but stdin is not a terminal.
        """
        if not yes and not is_terminal(sys.stdin):
            raise InvalidValueError(
                "purge deletes messages permanently, and cannot ask for confirmation without a terminal: add --yes"
            )
        number = None if yes and not self.err.is_terminal else count()
        if not yes and not agreed(number or 0):
            self.note("nothing was purged")
            raise typer.Exit(FAILED)
        with self.progress("purged", number) as moved:
            dropped = purge(moved)
        self.result({"purged": dropped}, f"{dropped:,} purged")

    def fail(self, error: RmqError) -> typer.Exit:
        """Print an error as one red line, and return the exception that ends the command."""
        if self.options.verbose:
            self.err.print(Text(safe_lines("".join(traceback.format_exception(error))).rstrip()), soft_wrap=True)
        self.err.print(Text(f"rmq: {shown(str(error), _MOST_ERROR_CHARACTERS)}", style="red"), soft_wrap=True)
        if isinstance(error, EnsembleMismatchError) or (isinstance(error, FencedError) and not error.epoch):
            self.note(f"`rmq adopt {error.topic}` shows which ensembles own its slots; with --from it moves the slots")
        unknown = error if isinstance(error, UnknownTopicError) else error.__cause__
        if isinstance(unknown, UnknownTopicError) and (similar := self._similar(unknown.topic or "")):
            self.note(f"did you mean {similar[0]}?")
        return typer.Exit(BAD_INPUT if isinstance(error, InvalidValueError) else FAILED)

    def _similar(self, topic: str) -> list[str]:
        """Return the name of the registered topic that is most like a name that was not found, if any is like it."""
        with suppress(RmqError):
            if not chosen_url(self.options.url).temporary:
                with RmqClient(self.options.url, deadline_s=1.0) as client:
                    return get_close_matches(topic, [each.name for each in client.topics()], 1)
        return []

    @contextmanager
    def progress(self, what: str, total: int | None) -> Generator[Callable[[int], None]]:
        """Context manager that yields a function to report progress, shown as a bar if stderr is a terminal."""
        if not self.err.is_terminal:
            yield lambda done: None
            return
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.err, transient=True) as progress:
            task = progress.add_task("", total=total)
            yield lambda done: progress.update(task, completed=done)


def command(app: typer.Typer, name: str | None, function: Callable[Concatenate[Session, P], int | None]) -> None:
    """Register a function as a command with the global options. An `RmqError` ends it with one line of error.

    The function returns the exit code; `None` is 0, success.

    A parameter whose type is a dataclass adds an option for each field of the dataclass. The help of an option stands
    in the section `Options` of the function's docstring, or `Attributes` of the dataclass's.

    Args:
        app: Typer application of the command.
        name: Name of the command; `None` for the default action of a group.
        function: Runs the command. Its first argument is the session, the others are the command's own options.
    """

    def call(ctx: typer.Context, url: Url = None, json: Json = False, verbose: Verbose = False, **own: Any) -> None:
        before = cast("GlobalOptions", ctx.find_root().obj)
        options = GlobalOptions(before.url if url is None else url, json or before.json, verbose or before.verbose)
        if options.verbose:
            log_to_stderr("DEBUG")
        if ctx.invoked_subcommand is not None:  # the options of a group are meant for its command
            ctx.find_root().obj = options
            return
        session = Session(options)
        try:
            names = {each.name: _given_as(ctx, each) for each in ctx.command.params}
            for name, text in required.items():
                if own[name] is None:
                    raise InvalidValueError(f"{names[name]} is required: {text}")
            own = {name: _parsed(value, names[name]) for name, value in own.items()}
            for name, kind in groups.items():
                own[name] = kind(**{field.name: own.pop(field.name) for field in fields(kind)})
            code = cast("Callable[..., int | None]", function)(session, **own)
        except RmqError as error:
            raise session.fail(error) from None
        if code:
            raise typer.Exit(code)

    shared = inspect.signature(call, eval_str=True).parameters
    taken = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    groups: dict[str, Any] = {each.name: each.annotation for each in taken if is_dataclass(each.annotation)}
    text, texts = _documented(function)
    own = [
        part
        for each in taken
        for part in (_fields(each.annotation) if each.name in groups else [_with_help(each, texts)])
    ]
    required = {each.name: _option_of(each).help for each in own if _is_required(each)}
    own = [with_own_parser(_not_required(each) if each.name in required else each) for each in own]
    if function.__name__ in SERVICES:
        own = [_with_variable(each, function.__name__) for each in own]
    parameters = [shared["ctx"], *own, *(shared[each] for each in ("url", "json", "verbose"))]
    functools.update_wrapper(call, function)
    call.__doc__ = text
    keyword_only = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    call.__signature__ = inspect.Signature(keyword_only)  # pyright: ignore[reportFunctionMemberAccess]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    register_call = (
        app.callback(cls=_Group, invoke_without_command=True) if name is None else app.command(name, cls=_Command)
    )
    register_call(call)


def settable(command: Any) -> dict[str, Any]:
    """Return the parameters of a service that its table in the settings file may have, by their names there."""
    own = [each for each in command.params if each.name not in ("url", "json", "verbose")]
    return {each.opts[0].lstrip("-"): each for each in own}


def _given_as(ctx: typer.Context, parameter: Any) -> str:
    """Return how a value was given: the name of an option or argument, a variable, or a setting of the file."""
    source = getattr(ctx.get_parameter_source(parameter.name), "name", "")
    option: str = parameter.opts[0]
    if source == "ENVIRONMENT":
        return variable_of(ctx.command.name or "", option)
    if source == "DEFAULT_MAP":
        return f"{ctx.command.name}.{option.lstrip('-')} in the settings file"
    return option


def _with_variable(parameter: inspect.Parameter, command: str) -> inspect.Parameter:
    """Return an option or argument of a service that can be set by an environment variable, too."""
    plain, *rest = get_args(parameter.annotation)
    described = [copy.copy(each) for each in rest]
    for each in described:
        if isinstance(each, ParameterInfo):
            named = (each.default, *(each.param_decls or ()))  # typer takes the first name as a default
            names = [name for name in named if isinstance(name, str) and name.startswith("-")]
            each.envvar, each.show_envvar = variable_of(command, [*names, parameter.name][0]), False
    return parameter.replace(annotation=Annotated[plain, *described])


_WIDEST_KIND = 14
"""Most characters of the choices of an option in its second column; the help of one with more names them."""

_KINDS = {"<int>": "N", "<float>": "NUMBER", "<str>": "TEXT", "<bytes>": "TEXT"}


def _without_types(parameters: Iterable[Any]) -> None:
    """Remove Python types from the help of options, and the value from that of switches; choices need no brackets."""

    def taken(parameter: Any, show: Callable[..., str | None], ctx: Any) -> str | None:
        kind = str(show(ctx=ctx))
        if parameter.param_type_name == "argument" or kind == "<bool>":
            return None
        choices = kind.strip("<>")
        return _KINDS.get(kind, choices if kind == choices or len(choices) <= _WIDEST_KIND else "CHOICE")

    for parameter in parameters:
        show = getattr(parameter, "display_type_rich", None)
        if show is not None:
            parameter.display_type_rich = functools.partial(taken, parameter, show)


class _Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        _without_types(self.get_params(ctx))
        super().format_help(ctx, formatter)


class _Group(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        _without_types(self.get_params(ctx))
        super().format_help(ctx, formatter)


def make_group(help: str, *, no_args_is_help: bool = True, epilog: str | None = None) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(
        cls=_Group,
        help=help,
        epilog=epilog,
        no_args_is_help=no_args_is_help,
        add_completion=False,
        pretty_exceptions_enable=False,  # they would show the values of variables
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def register(group: typer.Typer, *functions: Callable[..., int | None], **named: Callable[..., int | None]) -> None:
    """Register functions as commands, under their own names with dashes, or under the names of `named`."""
    for name, function in [*((each.__name__.replace("_", "-"), each) for each in functions), *named.items()]:
        command(group, name, function)


_SECTION = re.compile(r"\n+(?:Options|Attributes):\n")
_HELP = re.compile(r"^    (\w+): (.*(?:\n     .*)*)", re.MULTILINE)
_DEFAULT = re.compile(r" \\\[(?=default)")


def _fields(kind: Any) -> list[inspect.Parameter]:
    _, texts = _documented(kind)
    return [_with_help(each, texts) for each in inspect.signature(kind, eval_str=True).parameters.values()]


def _documented(documented: Any) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring, and the help texts of options that its last section holds."""
    text, *section = _SECTION.split(inspect.getdoc(documented) or "", maxsplit=1)
    texts = {match[1]: " ".join(match[2].split()) for match in _HELP.finditer("".join(section))}
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", text)  # typer joins the lines of the first paragraph only
    return text, {name: _DEFAULT.sub(r"  \\[", help.replace("[", "\\[")) for name, help in texts.items()}


def _with_help(parameter: inspect.Parameter, texts: Mapping[str, str]) -> inspect.Parameter:
    """Return an option or argument with its help text, if there is one for its name."""
    plain, *rest = get_args(parameter.annotation) or [None]
    if parameter.name not in texts or not rest or not isinstance(rest[0], ParameterInfo):
        return parameter
    described = copy.copy(rest[0])
    described.help = texts[parameter.name]
    return parameter.replace(annotation=Annotated[plain, described])


def _option_of(parameter: inspect.Parameter) -> Any:
    return next((each for each in get_args(parameter.annotation) if isinstance(each, OptionInfo)), None)


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty and _option_of(parameter) is not None


def _not_required(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a required option as an optional one, so that RMQ, not typer, reports it as missing, in one line."""
    plain, *rest = get_args(parameter.annotation)
    option = copy.copy(_option_of(parameter))
    option.help = f"{option.help}  \\[required]"
    rest = [option if isinstance(each, OptionInfo) else each for each in rest]
    return parameter.replace(default=None, annotation=Annotated[plain | None, *rest])


def _parsed(value: Any, name: str) -> Any:
    """Return the value of an option; one that was declared with `typed` is parsed now, with its name for errors."""
    if isinstance(value, list):
        return [_parsed(each, name) for each in cast("list[Any]", value)]
    return cast("Callable[[str], Any]", value)(name) if isinstance(value, functools.partial) else value


def log_to_stderr(level: str, as_json: bool = False) -> None:
    """Write log records of a level or above to stderr, escaped, since they may contain payloads."""
    handler = logging.StreamHandler()
    plain = _SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else plain)
    logging.basicConfig(level=level, handlers=[handler], force=True)


class _SafeFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return safe_lines(super().format(record))


def new_table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table. The prefix `>` of a column's name aligns numbers; the prefix `~` cuts cells to fit."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    for column in columns:
        name = column.lstrip(">~")
        if column.startswith(">"):
            table.add_column(name, justify="right", no_wrap=True)
        elif column.startswith("~"):
            table.add_column(name, overflow="ellipsis")
        else:
            table.add_column(name, overflow="fold")
    return table


def table_of(
    columns: Columns[T],
    values: Iterable[T],
    title: str | None = None,
    style: Callable[[T], str | None] = lambda value: None,
) -> Table:
    """Return a table with a row for each value. `style` returns the style of a value's row."""
    table = new_table(*columns, title=title)
    for value in values:
        table.add_row(*cells_of(columns, value), style=style(value))
    return table


def cells_of(columns: Columns[T], value: T) -> Iterator[Text]:
    """Yield the cells of a value: cut to fit in columns with the prefix `~`, and coloured if they need attention."""
    for name, cell in columns.items():
        text = cell(value)
        tone = cast("Column[T]", cell).tone(value) if isinstance(cell, Column) else ""
        cut = name.startswith("~")
        yield text if isinstance(text, Text) else cut_words(text) if cut else Text(text, style=_TONES[tone])


def cut(value: str | bytes) -> Text:
    """Return a payload as an escaped table cell of one line, cut to fit the column."""
    return cut_words(shown(value))


def cut_words(text: str) -> Text:
    """Return an escaped text as a table cell of one line, cut to fit the column."""
    # not the column's own `no_wrap`: a table that is too wide takes from the columns that may wrap
    return Text(text, no_wrap=True, overflow="ellipsis")


def reason(message: DeadMessage | FoundMessage) -> str:
    """Return the error type and error text of a dead message, not escaped; empty if the message is not dead."""
    return ": ".join(filter(None, (message.error_type, message.error_message)))


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal; a closed standard stream is `None`."""
    return stream is not None and stream.isatty()


def redis_now_ms(client: RmqClient, topic: Topic) -> int:
    """Return Redis' time in epoch ms, since due times and ages are measured by Redis' clock."""
    view = client.stream(topic) if topic.type is TopicType.STREAM else client.inspect(topic)
    return view.stats([0]).slots[0].now_ms
