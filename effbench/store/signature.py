"""Sign the sweeps that this user begins, so that others cannot add code to them.

A sweep names functions, interpreters and folders that run when it is resumed. Whoever can write to
its database can change them. The key of the signature never leaves this user's account.
"""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress

import sqlalchemy as sa

from effbench.errors import ConfigError
from effbench.folders import state_file
from effbench.store.schema import PLANNED, SWEEP
from effbench.store.values import dump_json

_SIGNED = ("id", "overrides", "protocol", "baseline_mode", "seed")


def sign(connection: sa.Connection, sweep_id: str) -> None:
    """Sign the sweep's overrides, interpreters and cells as they are now."""
    host, signature = _signature(connection, sweep_id)
    values = {"host": {**host, "signature": signature}}
    connection.execute(sa.update(SWEEP).where(SWEEP.c.id == sweep_id).values(**values))


def is_own(connection: sa.Connection, sweep_id: str) -> bool:
    """Return whether this user began the sweep, and nobody else has changed what it runs."""
    host, signature = _signature(connection, sweep_id)
    return signature is not None and hmac.compare_digest(
        str(host.get("signature")).encode(), signature.encode()
    )


def _signature(connection: sa.Connection, sweep_id: str) -> tuple[dict, str | None]:
    """Return the sweep's `host`, and the signature that it must contain; None if the sweep was
    imported, or if no key can be stored."""
    row = connection.execute(sa.select(SWEEP).where(SWEEP.c.id == sweep_id)).mappings().one()
    keys = connection.scalars(sa.select(PLANNED.c.cell_key).where(PLANNED.c.sweep_id == sweep_id))
    host = row["host"] if isinstance(row["host"], dict) else {}
    key = _key()
    if row["imported_at"] is not None or key is None:
        return host, None
    signed = dump_json([*(row[name] for name in _SIGNED), host.get("environments"), sorted(keys)])
    return host, hmac.digest(key, signed.encode(), "sha256").hex()


def _key() -> bytes | None:
    """Return this user's key; create it if it is missing."""
    try:
        path = state_file("key")
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(32))
            with suppress(FileExistsError):  # another process was faster
                os.link(draft, path)
            draft.unlink()
        # another user may have created it
        key = path.read_bytes() if path.stat().st_uid == os.getuid() else b""
    except (OSError, ConfigError):  # a user without any folder
        return None
    return key if len(key) == 32 else None
