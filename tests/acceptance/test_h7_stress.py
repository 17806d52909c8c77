import pytest, time, shutil
from tests.acceptance.customers import Customers
from tests.acceptance.test_consumer_outages_database import database_behind_proxy
from tests.polling import eventually
@pytest.mark.parametrize("n", range(20))
def test_stress(deployment, n):
  with database_behind_proxy(deployment) as (proxy, through):
    c = Customers.__new__(Customers)
    c.deployment=deployment; c.sent=[]
    c.start_consumer(**through).wait_for("consumer connected")
    for i in range(8):
        c.send()
        try:
            eventually(lambda: deployment.message_ids(), lambda f: len(f) >= len(c.sent), seconds=6)
        except AssertionError:
            print("ROUND", i, set(c.sent) - set(deployment.message_ids()), c.depths(), c.consumer.entries()[-3:])
            from sqlalchemy import text
            with deployment.engine.connect() as k:
                for r in k.execute(text("select pid, application_name, state, wait_event_type, wait_event, backend_start, xact_start, state_change, query from pg_stat_activity where datname=current_database()")): print(r)
                for r in k.execute(text("select pid, locktype, relation::regclass, mode, granted, objid from pg_locks where not granted")): print(r)
            import subprocess; print(subprocess.run(f"ss -tnp | grep {proxy.port}", shell=True, capture_output=True, text=True).stdout)
            shutil.copy(c.consumer.log, "/tmp/h7_failed.log")
            c.send()
            time.sleep(2)
            print(set(c.sent) - set(deployment.message_ids()))
            raise
