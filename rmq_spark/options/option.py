"""Declare options, and read the values that users give for them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.parsers import NotAccepted, Parser

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_REDIS = "redis."


@dataclass(frozen=True)
class Option(Generic[T_co]):
    """An option.

    help: one or two sentences without the last period, with Markdown's backticks.
    default: the text that counts when users give none. otherwise: where there is no default, a few
    words for what applies then, such as "no limit". is_secret: the value is, or may hold, a
    password, so no error quotes it. see: the section of a page that says more.
    """

    name: str
    parser: Parser[T_co]
    help: str
    default: str | None = None
    otherwise: str = ""
    is_secret: bool = False
    see: str = ""

    def parse(self, text: str) -> T_co:
        """Return the value of a text. Raises InvalidOption."""
        try:
            if not isinstance(text, str):
                raise NotAccepted
            return self.parser.read(text)
        except NotAccepted as refused:
            reason, accepted = refused.reason, refused.accepted or self.parser.plainly_accepted
        except InvalidOption:
            if not self.is_secret:
                raise
            reason, accepted = "", self.parser.plainly_accepted
        shown = f"{self.name}={text!r} {reason}"
        if self.is_secret:
            shown = f"{self.name} is not accepted (it is not shown, it may hold a password)"
        remedy = f" {self.parser.remedy}" if self.parser.remedy else ""
        raise InvalidOption(f"{shown}. Accepted: {accepted}.{remedy}")

    @property
    def default_value(self) -> T_co:
        """The value of the default."""
        if self.default is None:
            raise KeyError(f"The option {self.name} has no default.")
        return self.parse(self.default)

    @property
    def plain_help(self) -> str:
        """The help as a terminal shows it."""
        return self.help.replace("`", "")

    def called(self, name: str) -> "Option[T_co]":
        """Return the same option with another name, such as that of a command's argument."""
        return replace(self, name=name)


class Values:
    """The values of a table's options: those that users gave, and defaults for the others."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    def __contains__(self, option: Option[Any]) -> bool:
        """Whether users gave this option."""
        return option.name in self._given

    def __getitem__(self, option: Option[T]) -> T:
        """Return the value given, or the default. For options that have a default."""
        value: T = self._given[option.name] if option in self else option.default_value
        return value

    def get(self, option: Option[T]) -> T | None:
        """Return the value given, or the default, or None where there is none."""
        return None if option not in self and option.default is None else self[option]


@dataclass(frozen=True)
class OptionTable:
    """The options that are accepted together. Names are case-insensitive.

    owner: whose they are, for errors. passed_over: names in lower case that others added.
    """

    owner: str
    options: tuple[Option[Any], ...]
    passed_over: frozenset[str] = frozenset()

    def parse(self, given: Mapping[str, str]) -> Values:
        """Return the typed values of these texts. Raises InvalidOption."""
        own = {name: text for name, text in given.items() if name.lower() not in self.passed_over}
        unknown = [name for name in own if self.find(name) is None]
        if unknown:
            raise InvalidOption(self._unknown(unknown))
        found = ((self.find(name), text) for name, text in own.items())
        return Values({option.name: option.parse(text) for option, text in found if option})

    def find(self, name: str) -> Option[Any] | None:
        """Return the option of that name, or None."""
        return self._by_key.get(_key(name))

    @cached_property
    def _by_key(self) -> dict[str, Option[Any]]:
        return {_key(option.name): option for option in self.options}

    def _unknown(self, names: list[str]) -> str:
        """Name what is unknown, what was probably meant, and the options to choose from."""
        from difflib import get_close_matches  # seldom needed, and not cheap to import

        near = {near for name in names for near in get_close_matches(_key(name), self._by_key, 1)}
        meant = ", ".join(self._by_key[key].name for key in sorted(near))
        # Whoever misspells an option of redis.* wants to see these alone.
        prefixes = {name.lower().rpartition(".")[0] for name in names}
        prefix = prefixes.pop() if len(prefixes) == 1 else ""
        of_prefix = [option.name for option in self.options if option.name.startswith(prefix)]
        accepted = of_prefix or [option.name for option in self.options]
        return (
            f"Unknown option for {self.owner}: {', '.join(sorted(names))}. "
            f"{f'Did you mean {meant}? ' if meant else ''}Accepted: {', '.join(accepted)}."
        )


def _key(name: str) -> str:
    """How a name is compared. redis-py writes names with underscores, so both forms are known."""
    key = name.lower()
    return key.replace("_", "") if key.startswith(_REDIS) else key
