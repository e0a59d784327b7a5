"""Replace the passwords of URLs by `***` before text is shown, stored or exported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: `scheme://user` of a URL with a password. A database URL may lack slashes or have one too many.
_USER = r"""((?:(?<!http)(?<!https)://|\bpostgres[\w+]*:/{0,3})(?!\[)[^:/@\s'"]*):"""
#: In a bare URL the password ends at the last @, because few people escape special characters.
_IN_URL = re.compile(rf"{_USER}.*@", re.S)
#: In a sentence it ends at the last @ before a space, or at a later @ if no @ precedes it (unless
#: it is only a port).
_IN_TEXT = re.compile(
    rf"{_USER}(?:\S*|(?!\d*(?:[/?]\S*)?[\s.,;)'\"]*(?:\s|$))(?:(?!\s['\"(]?\w[\w+]*://).)*)@"
)
#: In a web address a token ends before the first slash.
_WEB = re.compile(r"""(\bhttps?://[^:/@\s'"]*):[^\s/]*@""")
_PARAMETER_IN_URL = re.compile(r"""([?&](?:ssl)?password=)[^&]*?(?=&|['"]*$)""", re.I | re.S)
_PARAMETER_IN_TEXT = re.compile(r"""([?&](?:ssl)?password=)[^&\s'"]*""", re.I)


def masked_url(text: str) -> str:
    """Return a URL, or a word of a command line that contains one, without its password. It need
    not be valid."""
    return _PARAMETER_IN_URL.sub(r"\1***", _WEB.sub(r"\1:***@", _IN_URL.sub(r"\1:***@", text)))


def masked(words: Iterable[str]) -> list[str]:
    """Return the words of a command line without the passwords of URLs in them."""
    return [masked_url(word) for word in words]


def masked_text(text: str, words: Sequence[str] = ()) -> str:
    """Return a message without the passwords of URLs. If it quotes one of `words`, the end of that
    URL is known."""
    for word in words:
        if word:
            text = text.replace(word, masked_url(word))
    return _PARAMETER_IN_TEXT.sub(r"\1***", _WEB.sub(r"\1:***@", _IN_TEXT.sub(r"\1:***@", text)))


def masked_db(words: Sequence[str]) -> list[str]:
    """Return overrides without the database's password; all others stay as they are, because they
    will be replayed."""
    return [masked_url(word) if re.match(r"\+{0,2}db=", word) else word for word in words]
