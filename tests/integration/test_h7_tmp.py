import asyncio, time
from sqlalchemy import make_url, select, text
from outboxkit import inbox_handler, process, outbox
from tests.integration.running_consumer import *
from tests.tcp_proxy import TcpProxy
import pytest

@pytest.mark.parametrize("way", ["release", "stop", "cut"])
async def test_x(postgresql_url, pg_engine, broker, way):
    t = make_url(postgresql_url)
    proxy = TcpProxy(t.host, t.port)
    engine = process.engine(t.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False), name="x", pool_size=9)
    go = asyncio.Event(); in_it = asyncio.Event(); runs = []
    @inbox_handler("H", timeout=1)
    async def h(session, event: Ordered) -> None:
        runs.append(time.monotonic())
        in_it.set()
        await go.wait()
        await session.execute(text("SELECT 1"))
    cm = starter(engine, broker)(h)
    c = await cm.__aenter__()
    try:
        publish(broker, 1, "m")
        await in_it.wait()
        proxy.swallow()
        t0 = time.monotonic()
        go.set()
        if way == "stop":
            await asyncio.sleep(2); c.stop.set(); t1=time.monotonic()
            await cm.__aexit__(None,None,None); print("STOPPED AFTER", time.monotonic()-t1)
            proxy.close(); return
        await asyncio.sleep(20)
        print("AFTER 20", c.consumer.outcomes, [r-t0 for r in runs])
        if way == "cut": proxy.cut()
        proxy.release()
        t1=time.monotonic()
        await c.reaches(processed=1)
        print("DONE", time.monotonic()-t1, [r-t0 for r in runs])
    finally:
        if way != "stop": await cm.__aexit__(None,None,None)
        proxy.close()
        await engine.dispose()
