/* The floor of a claim: a relay looks for ready rows above it, and no ready row may ever be at it or below.

   One relay looks and claims; what others do to rows is anybody's choice. Sets of rows are bit masks.

   run by day: -DROWS=3
   run by night: -DROWS=4
   run broken: -DROWS=3
*/
#include "property.h"

#define HIDDEN 1  /* promise 6: when a relay claims, and looks for predecessors, no ready row is at its floor or below */

mtype = { absent, open, undone, ready, held, gone };
mtype state[ROWS + 1] = absent;
byte next = 1;
byte floor, highest, mark, marked, cleared;

#define pending(p) (state[p] == ready || state[p] == held)
#define some_pending (pending(1) || pending(2) || pending(3) || (ROWS > 3 && pending(ROWS)))

/* A transaction that adds a row. The table is locked before the position is drawn, and until its end: one step is enough. */
proctype Transaction(byte p) {
#ifdef LOCK_LATE  /* breaks HIDDEN: a position is drawn before the transaction can be seen as writing */
    atomic { next == p -> next++ };
    state[p] = open;
#else
    atomic { next == p -> state[p] = open; next++; printf("a transaction draws position %d\n", p) };
#endif
    if
    :: atomic { state[p] = ready; printf("the row at %d is committed\n", p) }
    :: state[p] = undone
    fi
}

/* Floor.look, after two statements: writers() and oldest_ready(). */
inline look() {
    d_step {
        writing = 0; for (p : 1 .. ROWS) { if :: state[p] == open -> writing = writing | BIT(p) :: else fi };
        p = 0; printf("the relay looks who is writing\n") };
    d_step {
        oldest = ROWS + 1; for (p : 1 .. ROWS) { if :: state[p] == ready && p > floor && p < oldest -> oldest = p :: else fi };
#ifdef NO_MARK  /* breaks HIDDEN: the floor rises without waiting for the transactions that were writing */
        cleared = highest;
#endif
#ifdef MARK_LATE  /* breaks HIDDEN: the floor rises to what was seen since, and not to the mark that was set then */
        if :: mark && (marked & writing) == 0 -> cleared = highest :: else fi;
#endif
#ifdef NOT_THE_OLDEST  /* breaks HIDDEN: the floor rises to the mark even if an older row is still ready */
        oldest = ROWS + 1;
#endif
        if :: cleared >= oldest -> p = oldest - 1 :: else -> p = cleared fi;
        if :: p > floor -> floor = p; printf("the floor rises to %d\n", floor) :: else fi;
        if :: (marked & writing) == 0 -> cleared = mark; mark = highest; marked = writing :: else fi;
        writing = 0; oldest = 0; p = 0 }
}

#define claimable(p) (state[p] == ready && p > floor)

/* A row is claimed, and published or held until its retry. */
inline take() {
    printf("the relay claims the row at %d\n", p); if :: p > highest -> highest = p :: else fi;
    if :: state[p] = gone :: state[p] = held fi;
    p = 0
}

/* Claimer.claim: any of the ready rows above the floor, one after the other. */
proctype Relay() {
    byte p, writing, oldest;
    do
    :: some_pending -> look()
    :: atomic { claimable(1) -> p = 1; take() }
    :: atomic { claimable(2) -> p = 2; take() }
    :: atomic { claimable(3) -> p = 3; take() }
    :: atomic { ROWS > 3 && claimable(ROWS) -> p = ROWS; take() }
    :: d_step { some_pending -> for (p : 1 .. ROWS) { PROPERTY(HIDDEN, state[p] != ready || p > floor) }; p = 0 }
    od
}

/* Other relays, operators and retries, which know nothing of this floor, and held rows, which are claimed without it. */
proctype Others(byte p) {
    do
    :: state[p] == ready -> state[p] = gone
    :: state[p] == ready -> state[p] = held
    :: state[p] == held -> state[p] = gone
#ifdef DUE_IS_READY  /* breaks HIDDEN: a row that comes back, for a retry or a replay, is ready again like a fresh one */
    :: atomic { state[p] == held -> state[p] = ready; printf("the row at %d is ready again\n", p) }
#endif
    od
}

init {
    byte p;
    atomic { for (p : 1 .. ROWS) { run Transaction(p); run Others(p) }; run Relay() }
}
