"""Declarations of options, and the values that users give for them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from rmq_spark.errors import InvalidOption
from rmq_spark.topics.parsers import NotAccepted, Parser

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_REDIS = "redis."
_NAME_OF_REDIS = re.compile(r"\bredis\.[a-zA-Z]+")
# Writes the name of an option as the caller's users type it: socketTimeout, --redis-url.
Spelling = Callable[[str], str]


@dataclass(frozen=True)
class Option(Generic[T_co]):
    """An option with its parser, default and help.

    help: one or two sentences without the last period, with Markdown's backticks.
    default: the text to parse when users give none. otherwise: without a default, a few words for
    what applies, such as "no limit". is_secret: the value is, or may contain, a password, so no
    error quotes it. see: the section of a page that explains more.
    """

    name: str
    parser: Parser[T_co]
    help: str
    default: str | None = None
    otherwise: str = ""
    is_secret: bool = False
    see: str = ""

    def parse(self, text: str) -> T_co:
        """Parse a text into the option's value. Raises InvalidOption."""
        try:
            if not isinstance(text, str):
                raise NotAccepted
            return self.parser.read(text)
        except NotAccepted as refused:
            reason, accepted = refused.reason, refused.accepted or self.parser.accepted_plain
        except InvalidOption as error:
            if not self.is_secret:
                raise error.called(self.name) from None
            reason, accepted = "", self.parser.accepted_plain
        shown = f"{self.name}={text!r} {reason}"
        if self.is_secret:
            hidden = "its value is not shown: it may contain a password"
            shown = f"{self.name} is not accepted ({hidden})"
        remedy = f" {self.parser.remedy}" if self.parser.remedy else ""
        raise InvalidOption(f"{shown}. Accepted: {accepted}.{remedy}")

    @property
    def default_value(self) -> T_co:
        """The parsed default. Raises KeyError for an option without one."""
        if self.default is None:
            raise KeyError(f"The option {self.name} has no default.")
        return self.parse(self.default)

    @property
    def plain_help(self) -> str:
        """The help as a terminal shows it, without backticks."""
        return self.help.replace("`", "")

    def called(self, name: str) -> "Option[T_co]":
        """Return the option under another name, such as a command's argument."""
        return replace(self, name=name)

    def spelled(self, spelling: Spelling) -> "Option[T_co]":
        """Return the option as users spell it, in its name and in what errors advise."""
        parser = replace(self.parser, remedy=spell(self.parser.remedy, spelling))
        return replace(self, name=spelling(self.name), parser=parser)


def spell(text: str, spelling: Spelling) -> str:
    """Spell the options of ``redis.*`` in a text, which must not quote values of users."""
    return _NAME_OF_REDIS.sub(lambda name: spelling(name[0]), text)


class Values:
    """The typed values of options: those that users give, and defaults for the others.

    spelling: how users spell the names of options, for errors.
    """

    def __init__(self, given: Mapping[str, Any], spelling: Spelling = str) -> None:
        self._given = given
        self.spelling = spelling

    def __contains__(self, option: Option[Any]) -> bool:
        """Return whether users gave this option."""
        return option.name in self._given

    def __getitem__(self, option: Option[T]) -> T:
        """Return the value given, or the default. Raises KeyError if there is neither."""
        value: T = self._given[option.name] if option in self else option.default_value
        return value

    def get(self, option: Option[T]) -> T | None:
        """Return the value given, or the default, or None if there is neither."""
        return None if option not in self and option.default is None else self[option]


@dataclass(frozen=True)
class OptionTable:
    """The options that one place accepts together. Names are case-insensitive.

    owner: the place, for errors, such as "the rmq source". passed_over: names in lower case to
    ignore, because others put them among the options.
    """

    owner: str
    options: tuple[Option[Any], ...]
    passed_over: frozenset[str] = frozenset()

    def parse(self, given: Mapping[str, str], spelling: Spelling = str) -> Values:
        """Parse texts, by the names of options. Raises InvalidOption for a name or text.

        spelling: how users spell the names of options, for errors.
        """
        own = {name: text for name, text in given.items() if name.lower() not in self.passed_over}
        unknown = [name for name in own if self.find(name) is None]
        if unknown:
            raise InvalidOption(self._unknown(unknown, spelling))
        pairs = ((self.find(name), text) for name, text in own.items())
        values = {o.name: o.spelled(spelling).parse(text) for o, text in pairs if o}
        return Values(values, spelling)

    def find(self, name: str) -> Option[Any] | None:
        """Find the option with this name; None if there is none."""
        return self._by_key.get(_key(name))

    @cached_property
    def _by_key(self) -> dict[str, Option[Any]]:
        return {_key(option.name): option for option in self.options}

    def _unknown(self, names: list[str], spelling: Spelling) -> str:
        """Write the error for unknown names: the nearest options, and those accepted."""
        from difflib import get_close_matches  # seldom needed, and not cheap to import

        near = {near for name in names for near in get_close_matches(_key(name), self._by_key, 1)}
        meant = ", ".join(spelling(self._by_key[key].name) for key in sorted(near))
        # A misspelt option of redis.* needs the list of redis.* only.
        prefixes = {name.lower().rpartition(".")[0] for name in names}
        prefix = prefixes.pop() if len(prefixes) == 1 else ""
        of_prefix = [option.name for option in self.options if option.name.startswith(prefix)]
        accepted = of_prefix or [option.name for option in self.options]
        return (
            f"Unknown option for {self.owner}: {', '.join(map(spelling, sorted(names)))}. "
            f"{f'Did you mean {meant}? ' if meant else ''}"
            f"Accepted: {', '.join(map(spelling, accepted))}."
        )


def _key(name: str) -> str:
    """Normalize a name for comparison. redis-py has underscores in names, so both forms work."""
    key = name.lower()
    return key.replace("_", "") if key.startswith(_REDIS) else key
