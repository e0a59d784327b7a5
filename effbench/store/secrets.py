"""Passwords out of the words of a command line, before these are kept or go elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: user:password@ of a URL, up to the last @ as nobody escapes what they should, and password=… behind a question mark
_CREDENTIALS = re.compile(r"""(://[^:/@\s'"]*):.*@""", re.S)
_PARAMETER = re.compile(r"""([?&](?:ssl)?password=)[^&]*?(?=&|['"]*$)""", re.I | re.S)


def masked(words: Sequence[str]) -> list[str]:
    """The words with `***` for every password in a URL."""
    return [masked_url(word) for word in words]


def masked_url(text: str) -> str:
    """One such word, or a URL that may be too broken to be parsed."""
    return _PARAMETER.sub(r"\1***", _CREDENTIALS.sub(r"\1:***@", text))


def masked_db(words: Sequence[str]) -> list[str]:
    """Overrides with `***` for the password of the database: every other word has to do the same when it is used
    again."""
    return [masked([word])[0] if re.match(r"\+{0,2}db=", word) else word for word in words]
