"""Handlers of events that are small on the wire and large in memory."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outboxkit import Reject, event, inbox_handler, upcast

WORK_SECONDS = 0.3


@event("Bomb")
@dataclass(frozen=True)
class Bomb:
    rows: Any


@event("OldBomb", version=2)
@dataclass(frozen=True)
class OldBomb:
    rows: Any


@event("BatchBomb")
@dataclass(frozen=True)
class BatchBomb:
    rows: Any


@event("ThreadBomb")
@dataclass(frozen=True)
class ThreadBomb:
    rows: Any


@event("RefusedBomb")
@dataclass(frozen=True)
class RefusedBomb:
    rows: Any


@event("RefusedBatchBomb")
@dataclass(frozen=True)
class RefusedBatchBomb:
    rows: Any


@dataclass(frozen=True)
class Row:
    tags: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    parts: list[str] = field(default_factory=list)


@event("RowBomb")
@dataclass(frozen=True)
class RowBomb:
    rows: list[Row]


@event("ModelBomb")
class ModelBomb(BaseModel):
    rows: list[Any]


@upcast("OldBomb", 1)
def rows_of(document: dict[str, Any]) -> dict[str, Any]:
    return document


@inbox_handler("Hold")
async def hold(session: AsyncSession, event: Bomb) -> None:
    await asyncio.sleep(WORK_SECONDS)


@inbox_handler("HoldOld")
async def hold_old(session: AsyncSession, event: OldBomb) -> None:
    await asyncio.sleep(WORK_SECONDS)


@inbox_handler("HoldRows")
async def hold_rows(session: AsyncSession, event: RowBomb) -> None:
    await asyncio.sleep(WORK_SECONDS)


@inbox_handler("HoldModel")
async def hold_model(session: AsyncSession, event: ModelBomb) -> None:
    await asyncio.sleep(WORK_SECONDS)


@inbox_handler("HoldBatch", batch=True)
async def hold_batch(session: AsyncSession, event: BatchBomb) -> None:
    await asyncio.sleep(WORK_SECONDS)


@inbox_handler("HoldInThread")
def hold_in_thread(session: Session, event: ThreadBomb) -> None:
    session.execute(text(f"SELECT pg_sleep({WORK_SECONDS})"))


@inbox_handler("Refuse")
async def refuse(session: AsyncSession, event: RefusedBomb) -> None:
    raise Reject("too large")


@inbox_handler("RefuseBatch", batch=True)
async def refuse_batch(session: AsyncSession, event: RefusedBatchBomb) -> None:
    raise Reject("too large")
