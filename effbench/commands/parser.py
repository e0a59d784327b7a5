"""The parser of subcommands: options may stand anywhere among the other words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """argparse's own takes the first row of words for all of them, and refuses the last of `O10 --db o.db bs=1`.

    Its parts (`advise buckets`) are parsers of this kind, too.
    """

    _is_intermixed = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        # what has parts leaves it to them; the second is argparse's own call from within the first
        if self._subparsers is not None or self._is_intermixed:
            return super().parse_known_args(args, namespace)
        self._is_intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixed = False
