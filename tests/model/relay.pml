/* The relay: two of them claim, publish and settle the messages of one outbox, and may be killed between any two steps.

   Rows go by their positions, and sets of rows are bit masks. A relay has two connections ("slots"), each with a transaction
   that holds a batch: one batch is published while the other waits to be settled, or was claimed ahead. The floor is left to
   floor.pml, which shows that it hides no row.

   run by day: -DROWS=2 -DFAULTS=1 -DREFUSALS=1
   run by night: -DROWS=3 -DFAULTS=1 -DREFUSALS=0
   run by night: -DROWS=3 -DFAULTS=0 -DREFUSALS=2
   run broken: -DROWS=3 -DFAULTS=1 -DREFUSALS=1
*/
#include "property.h"

#define ORDER 1  /* promise 6: the broker gets a message only behind all of its key that were committed before it */
#define LOST 2   /* promise 1: a row leaves the outbox as published only if the broker has its message */
#define LEFT 3   /* promise 1: once all is quiet, each committed message is published, dead, or parked behind a dead one */

#define BATCH 2

mtype = { absent, ready, held, parked, gone, dead };
mtype state[4] = absent;
bit key[4];
byte lock[4];            /* the connection that has the row locked: 2 * relay + slot, from 2 on */
byte before[4];          /* the rows of its key that were committed when it was */
byte arrived;                   /* the rows whose messages the broker has */
bool killed[3], cut[6];
byte faults = FAULTS, refusals = REFUSALS;

#define has(set, p) ((set) & BIT(p))
#define earlier(q, p) (q < p && key[q] == key[p] && state[q] != absent)
#define connection(slot) (2 * me + slot)
#define can(p) (lock[p] == 0 && (state[p] == ready || state[p] == held))
#define some_can (can(1) || can(2) || can(3))

/* A transaction of the application becomes visible. Positions are drawn before: commits come in any order. */
inline commit(p) {
    state[p] = ready; printf("message %d of key %d is committed\n", p, key[p]);
    for (q : 1 .. ROWS) { if :: earlier(q, p) -> before[p] = before[p] | BIT(q) :: else fi };
    q = 0
}

/* The broker gets a message, perhaps once more. */
inline arrive(p) {
    printf("relay %d publishes message %d\n", me, p);
    PROPERTY(ORDER, has(arrived, p) || (before[p] & ~arrived) == 0);
    arrived = arrived | BIT(p)
}

/* Claimer.claim. The rows are locked by one statement, claim_ready() or claim_due(). "Any of them" stands for its limit, for
   shares of keys and for rows that others lock meanwhile. A held row may be due at any moment. */
inline claim(slot) {
    atomic {
        for (p : 1 .. ROWS) {
            if
            :: can(p) && count < BATCH -> lock[p] = connection(slot); count++; printf("relay %d claims message %d\n", me, p)
            :: true
            fi };
        count = 0; p = 0 }
    plan(slot)
}

/* predecessors() is one statement, so one snapshot; then plan_batch. `own` are the own_rows of the statement. */
inline plan(slot) {
    d_step {
        own = sent[1 - (slot)];
#ifdef OWN_GIVEN_BACK  /* breaks ORDER: rows that the batch in front gives back count as if it published them */
        for (p : 1 .. ROWS) { if :: lock[p] == connection(1 - (slot)) -> own = own | BIT(p) :: else fi };
#endif
        for (p : 1 .. ROWS) { if :: lock[p] == connection(slot) -> own = own | BIT(p) :: else fi };
        for (p : 1 .. ROWS) {
            if
            :: lock[p] == connection(slot) && !cut[connection(slot)] ->
                first = 0;                                      /* 1: behind a ready row, 2: a held one, 3: a parked key */
                for (q : 1 .. ROWS) {
                    if
                    :: !earlier(q, p) -> skip
                    :: else ->
                        if
                        :: state[q] == dead -> first = 3
                        :: has(own, q) -> skip
                        :: state[q] == parked -> first = 3
                        :: state[q] == held && first < 2 -> first = 2
                        :: state[q] == ready && first < 1 -> first = 1
                        :: else
                        fi
                    fi };
#ifdef NO_PREDECESSORS  /* breaks ORDER: a relay publishes all that it has locked */
                first = 0;
#endif
                if
                :: first == 0 -> send[slot] = send[slot] | BIT(p)
                :: first == 2 -> wait[slot] = wait[slot] | BIT(p)
                :: first == 3 -> park[slot] = park[slot] | BIT(p)
                :: else -> printf("relay %d will give message %d back\n", me, p)
                fi
            :: else
            fi };
        sent[slot] = send[slot]; own = 0; first = 0; p = 0; q = 0 }
}

/* One message of the batch is sent and answered. KeyGate keeps those of a failed one's key back. */
inline publish(slot) {
    p = 1; do :: has(send[slot], p) -> break :: else -> p++ od;
    send[slot] = send[slot] & ~BIT(p);
    q = 1; do :: q < p && !(key[q] == key[p] && has(failed[slot] | buried[slot], q)) -> q++ :: else -> break od;
    if
#ifndef NO_GATE  /* breaks ORDER: messages behind a refused one of their key are sent all the same */
    :: q < p -> printf("relay %d does not send message %d\n", me, p)
    :: else ->
#else
    :: true ->
#endif
        if
        :: arrive(p); confirmed[slot] = confirmed[slot] | BIT(p)
        :: refusals > 0 -> refusals--; failed[slot] = failed[slot] | BIT(p); printf("message %d is refused\n", p)
        :: refusals > 0 -> refusals--; buried[slot] = buried[slot] | BIT(p); printf("message %d is refused for ever\n", p)
        :: faults > 0 -> faults--; unknown = true; printf("the broker does not answer relay %d for message %d\n", me, p);
            if :: arrive(p) :: true fi;
#ifdef NO_CONFIRM  /* breaks LOST: what was sent counts as published, whether or not the broker has confirmed it */
            confirmed[slot] = confirmed[slot] | BIT(p);
#endif
            send[slot] = 0
        fi
    fi;
    p = 0; q = 0
}

/* Adds the rows of a set to those that wait or are to be parked, if a message of their key in the batch failed or is dead. */
inline follow(set, slot, target, position) {
    for (p : 1 .. ROWS) {
        for (q : 1 .. ROWS) {
            if
            :: has(set, p) && key[q] == key[p] && (position) && has(buried[slot], q) -> park[target] = park[target] | BIT(p)
            :: has(set, p) && key[q] == key[p] && (position) && has(failed[slot], q) -> wait[target] = wait[target] | BIT(p)
            :: else
            fi } };
    p = 0; q = 0
}

/* drop_behind: the batch that was claimed ahead publishes nothing behind a message that has failed meanwhile. */
inline drop_behind(slot) {
#ifndef NO_DROP_BEHIND  /* breaks ORDER: the batch claimed ahead is published whatever happened to the one in front of it */
    follow(send[1 - (slot)], slot, 1 - (slot), true);
    send[1 - (slot)] = send[1 - (slot)] & ~(park[1 - (slot)] | wait[1 - (slot)]); sent[1 - (slot)] = send[1 - (slot)]
#else
    skip
#endif
}

#ifdef PARK_BEHIND_LATER  /* breaks LEFT: a message is parked behind a later one, if its transaction was slow to commit */
#define before_it true
#else
#define before_it q < p
#endif

/* SettlementWriter.commit: one transaction, which others see as a whole. If the connection was cut, nothing is written. */
inline settle(slot) {
    follow(sent[slot], slot, slot, q < p);
    for (p : 1 .. ROWS) {
        if
        :: lock[p] == connection(slot) && !cut[connection(slot)] ->
            if
            :: has(confirmed[slot], p) -> PROPERTY(LOST, has(arrived, p)); state[p] = gone
#ifdef NO_PARKING  /* breaks ORDER: a message that is given up parks nothing, and its key goes on */
            :: has(buried[slot], p) -> state[p] = gone
#endif
            :: has(buried[slot], p) -> state[p] = dead
            :: has(park[slot], p) && !has(buried[slot], p) ->       /* park(): if its key is parked by an earlier message now */
                q = 1; do :: q <= ROWS && !(state[q] == dead && key[q] == key[p] && before_it) -> q++ :: else -> break od;
                if :: q <= ROWS -> state[p] = parked :: else fi
            :: !has(confirmed[slot] | buried[slot] | park[slot], p) && has(failed[slot] | wait[slot], p) -> state[p] = held
            :: else
            fi;
            printf("relay %d settles message %d: %e\n", me, p, state[p])
        :: else
        fi };
    unlock(slot)
}

/* The end of a slot's transaction, which unlocks its rows. */
inline unlock(slot) {
    for (p : 1 .. ROWS) { if :: lock[p] == connection(slot) -> lock[p] = 0 :: else fi };
    cut[connection(slot)] = false; p = 0; q = 0;
    send[slot] = 0; sent[slot] = 0; confirmed[slot] = 0; failed[slot] = 0; buried[slot] = 0; wait[slot] = 0; park[slot] = 0
}

/* Pipeline.turn. Slot `now` is published. The other one is idle, or answered and to be settled, or claimed ahead. */
mtype = { idle, answered, ahead };
proctype Relay(byte me) {
    byte p, q, count, own, first, now;
    byte send[2], sent[2], confirmed[2], failed[2], buried[2], wait[2], park[2];
    mtype other = idle;
    bool busy, unknown;
start:
    {
        do
        :: !busy && some_can -> claim(now); busy = true
        :: busy && other == idle && some_can -> claim(1 - now);
            d_step { if :: send[1 - now] == 0 -> settle(1 - now) :: else -> other = ahead fi }
        :: d_step { other == answered -> settle(1 - now); other = idle }
        :: atomic { busy && send[now] != 0 -> publish(now) }
        :: d_step { busy && send[now] == 0 && other == ahead && !unknown -> drop_behind(now); other = answered; now = 1 - now }
        :: d_step { busy && send[now] == 0 && other == idle -> settle(now); busy = false; unknown = false; now = 0 }
        :: d_step { busy && send[now] == 0 && other == ahead && unknown ->
            settle(now); unlock(1 - now); busy = false; unknown = false; other = idle; now = 0 }
        od
    } unless { killed[me] };
    d_step {
        printf("relay %d is killed\n", me); unlock(0); unlock(1);
        killed[me] = false; busy = false; unknown = false; other = idle; now = 0; count = 0; own = 0; first = 0 }
    goto start
}

/* What happens around them, and the look at the quiet end: nobody can do anything any more. */
active proctype World() {
    byte p, q;
    if :: key[2] = 0 :: key[2] = 1 fi; if :: key[3] = 0 :: key[3] = 1 fi;
    run Relay(1); run Relay(2);
    do
    :: d_step { state[1] == absent -> commit(1) }
    :: d_step { state[2] == absent -> commit(2) }
    :: d_step { ROWS > 2 && state[3] == absent -> commit(3) }
    :: atomic { faults > 0 -> faults--; killed[1] = true }
    :: atomic { faults > 0 -> faults--; if :: q = 2 :: q = 3 fi; printf("connection %d is cut\n", q);
        for (p : 1 .. ROWS) { if :: lock[p] == q -> lock[p] = 0; cut[q] = true :: else fi }; p = 0; q = 0 }
    :: atomic { timeout ->
        for (p : 1 .. ROWS) {
            q = 0; do :: q < p && !(earlier(q, p) && state[q] == dead) -> q++ :: else -> break od;
            PROPERTY(LEFT, state[p] != ready && state[p] != held && (state[p] != parked || q < p)) } };
        break
    od
}
