"""The settings file of the command line: rmq.toml, or the table [tool.rmq] of pyproject.toml, in the current folder.

At the top level it has `url`, or `url-file`; each command that runs as a service has a table with its options:

    url-file = "/run/secrets/rmq-url"

    [worker]
    target = "shop.jobs:client"
    drain = 25

An argument takes precedence over the environment variable of the same option (RMQ_WORKER_DRAIN), and that over the
file. click resolves them: the file becomes the `default_map` of the context.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rmq.errors import InvalidValueError
from rmq.spi import read_secret

SERVICES = ("worker", "metrics", "dashboard")
"""Commands that take their options from the environment and the settings file, too."""

VARIABLE = "RMQ_CONFIG"
NAMES = "rmq.toml", "pyproject.toml"


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """What a settings file says.

    Attributes:
        url: URL of Redis.
        options: Command -> name of a parameter -> its value as click takes it.
    """

    url: str | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


def read_settings(chosen: Path | None, parameters: Mapping[str, Mapping[str, Any]]) -> SettingsFile:
    """Read the settings file.

    Args:
        chosen: The file; by default the one of the current folder, if there is one.
        parameters: Command -> name in the file -> parameter of click, of all settings that the file may have.

    Raises:
        InvalidValueError: The file cannot be read, or has an unknown setting or a value of the wrong type.
    """
    for path in [Path(name) for name in NAMES] if chosen is None else [chosen]:
        if chosen is None and not path.is_file():
            continue
        table = _table_of(path)
        if table is not None:
            return _checked(path, table, parameters)
    return SettingsFile()


def variable_of(command: str, option: str) -> str:
    """Return the environment variable of an option: `--health-port` of `worker` has RMQ_WORKER_HEALTH_PORT."""
    return f"RMQ_{command}_{option.lstrip('-').replace('-', '_')}".upper()


def _table_of(path: Path) -> Mapping[str, Any] | None:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidValueError(f"settings file {path} cannot be read: {error}") from None
    if path.name != "pyproject.toml":
        return document
    tools = document.get("tool")
    table: Any = cast("dict[str, Any]", tools).get("rmq") if isinstance(tools, dict) else None
    _check(table is None or isinstance(table, dict), path, "tool.rmq", "must be a table, [tool.rmq]")
    return cast("Mapping[str, Any] | None", table)


def _checked(path: Path, table: Mapping[str, Any], parameters: Mapping[str, Mapping[str, Any]]) -> SettingsFile:
    known = [*parameters, "url", "url-file"]
    for name, value in table.items():
        _check(name in known, path, name, f"is unknown; the settings are {', '.join(known)}")
        tabular = isinstance(value, dict)
        _check(
            tabular is (name in parameters), path, name, "must be a string" if tabular else f"must be a table, [{name}]"
        )
    url, url_file = table.get("url"), table.get("url-file")
    _check(url is None or url_file is None, path, "url-file", "and url are both set; set one of them")
    for name, value in (("url", url), ("url-file", url_file)):
        _check(value is None or isinstance(value, str), path, name, "must be a string")
    if url_file is not None:
        url = read_secret(path.parent / os.path.expanduser(url_file), f"url-file of {path}")
    options: dict[str, dict[str, Any]] = {}
    for command, own in parameters.items():
        options[command] = {}
        for name, value in table.get(command, {}).items():
            _check(name in own, path, f"{command}.{name}", f"is unknown; the settings are {', '.join(own)}")
            options[command][own[name].name] = _value(path, f"{command}.{name}", value, own[name])
    return SettingsFile(url, options)


def _value(path: Path, name: str, value: object, parameter: Any) -> object:
    """Return a value as click takes it: a bool for a switch, a list for a repeated option, else a text."""
    if getattr(parameter, "is_flag", False):
        _check(isinstance(value, bool), path, name, "must be true or false")
        return value
    several: list[Any] = [*cast("list[Any]", value)] if isinstance(value, list) else [value]
    plain = all(isinstance(each, str | int | float) and not isinstance(each, bool) for each in several)
    _check(plain, path, name, "must be a string or a number")
    _check(_is_repeated(parameter) or not isinstance(value, list), path, name, "must be a single value")
    return [str(each) for each in several] if _is_repeated(parameter) else str(several[0])


def _is_repeated(parameter: Any) -> bool:
    return getattr(parameter, "multiple", False)


def _check(valid: bool, path: Path, name: str, rule: str) -> None:
    if not valid:
        raise InvalidValueError(f"settings file {path}: {name} {rule}")
