"""Bring a database to this version's schema. The only importer of alembic."""

from __future__ import annotations

import logging
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

MIGRATIONS = Path(__file__).parent / "migrations"


def config() -> Config:
    """Alembic's configuration, made in code: users need no ini file."""
    made = Config()
    made.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    return made


def migrate(connection: sa.Connection, revision: str = "head") -> None:
    """Upgrade to `revision` inside the connection's open transaction: all of it or nothing."""
    # its progress is of no interest to whoever only wants to store results
    logging.getLogger("alembic").setLevel(logging.WARNING)
    made = config()
    made.attributes["connection"] = connection
    command.upgrade(made, revision)
