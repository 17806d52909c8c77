/* The inbox: two consumers, one message that is delivered again and again, and a pruner that forgets it. Time passes in ticks.

   The queue is a number of copies of the message; an operator's copy, whose age is accepted, is told apart. R is the retention,
   S the skew: a consumer may believe that it is up to 2 S earlier than the database's clock says, or be frozen for as long.

   run by day: -DR=2 -DS=1 -DLAST=6 -DDUPLICATES=1 -DTROUBLE=1
   run by night: -DR=2 -DS=1 -DLAST=6 -DDUPLICATES=1 -DTROUBLE=2
   run broken: -DR=2 -DS=1 -DLAST=6 -DDUPLICATES=1 -DTROUBLE=2
*/
#include "property.h"

#define ONCE 1    /* promise 4: the handler's effects are committed once, and once more only if an operator accepted that */
#define WINDOW 2  /* promise 5: a delivery is handled only while the inbox is sure to remember an earlier one */
#define LOST 3    /* promise 1: once all is quiet, the message was handled or is a dead letter */

mtype = { plain, accepted_copy };
byte now, born, accepted_at, processed_at;
byte copies = 1, accepted_copies;       /* in the queue, not delivered */
bool row, dead, stale, accepted, handled;       /* the inbox row, the dead letters, the operator's word */
byte writer;                            /* the consumer whose open transaction has inserted the row */
byte effects, duplicates = DUPLICATES, trouble = TROUBLE;
mtype copy[3];                          /* what a consumer has in hand, unacked */
bool killed[3], over;

inline back() {                         /* the broker delivers an unacked copy again */
    if :: copy[me] == plain -> copies++ :: copy[me] == accepted_copy -> accepted_copies++ :: else fi; copy[me] = 0
}

/* The row's time: the database's, or that of the message if it is later. */
inline stamp() {
    PROPERTY(WINDOW, now <= made + R + S);
    processed_at = now;
#ifndef ROW_BY_CLOCK  /* breaks ONCE: the row has the database's time, even if the message is dated later */
    if :: made > now -> processed_at = made :: else fi
#endif
}

/* The handler, and the commit of its rows with the inbox row. */
inline work() {
#ifdef ROW_APART  /* breaks LOST: the inbox row is committed before the handler's rows, in a transaction of its own */
    atomic { row = true; writer = 0 };
#endif
    if
    :: atomic {
        printf("consumer %d commits the effects at %d\n", me, now); PROPERTY(ONCE, effects == 0);
        effects++; handled = true; row = true; writer = 0 }
    :: atomic { trouble > 0 -> trouble--; writer = 0; printf("the handler fails at consumer %d\n", me) };
#ifdef ACK_BEFORE_COPY  /* breaks LOST: a failed delivery is acked, and its copy for the next attempt is published then */
        copy[me] = 0;
#endif
        atomic { if :: made == born -> copies++ :: else -> accepted_copies++ fi }    /* the copy, accepted as it was; then the ack */
    :: atomic { trouble > 0 -> trouble--; writer = 0; dead = true; printf("consumer %d buries it\n", me) }
    fi
}

/* run_once: INSERT … ON CONFLICT DO NOTHING waits for another open transaction with the same row. */
inline insert() {
    if
    :: atomic { now - clock > 2 * S -> back() }               /* what the proof assumes ends here */
#ifdef ROW_LAST  /* breaks ONCE: the handler runs first, and the row is inserted behind it, without an error if it is there */
    :: atomic { now - clock <= 2 * S -> done = !row; if :: done -> stamp() :: else fi };
        if :: done -> work() :: else fi
#else
    :: atomic { now - clock <= 2 * S && (writer == 0 || writer == me) ->
        if
        :: row -> printf("consumer %d finds a duplicate\n", me)
        :: else -> writer = me; done = true; stamp()
        fi };
        if :: done -> work() :: else fi
#endif
    fi
}

inline handle() {
#ifdef ACK_FIRST  /* breaks LOST: the delivery is acked before the transaction is committed */
    copy[me] = 0;
#endif
#ifdef NO_WINDOW  /* breaks WINDOW: the age of a delivery is not asked for */
#define is_stale false
#elif defined(NO_SKEW)  /* breaks WINDOW: retention and consumers count with exact clocks */
#define is_stale (clock > made && clock - made > R)
#else
#define is_stale (clock > made && clock - made > R - S)       /* window.is_too_old */
#endif
    if
    :: atomic { is_stale -> dead = true; stale = true; printf("consumer %d finds it stale\n", me) }
    :: else -> insert()
    fi;
    atomic { copy[me] = 0; clock = 0; made = 0; done = false }                      /* ack */
}

/* HandlerRunner.handle, for one handler. */
proctype Consumer(byte me) {
    byte clock, made; bool done;
start:
    {
        do
        :: atomic { copies > 0 -> copies--; copy[me] = plain; made = born; clock = now; printf("consumer %d receives it\n", me) };
            handle()
        :: atomic { accepted_copies > 0 -> accepted_copies--; copy[me] = accepted_copy; clock = now;
            printf("consumer %d receives the accepted copy\n", me);
            if :: accepted_at > born -> made = accepted_at :: else -> made = born fi };
            handle()
        od
    } unless { killed[me] };
    atomic { printf("consumer %d is killed\n", me); killed[me] = false; back(); clock = 0; made = 0; done = false;
        if :: writer == me -> writer = 0 :: else fi };        /* the server rolls its transaction back */
    goto start
}

/* Retention: DELETE, or a whole day's partition, in one transaction. */
proctype Pruner() {
    do
#ifdef PRUNE_BY_BIRTH  /* breaks ONCE: a day is dropped by the times in its ids, whatever was accepted later */
    :: atomic { row && writer == 0 && now > born && now - born > R + S -> row = false; processed_at = 0; printf("the inbox forgets it at %d\n", now) }
#elif defined(NO_SKEW)
    :: atomic { row && writer == 0 && now > processed_at && now - processed_at > R -> row = false; processed_at = 0; printf("the inbox forgets it at %d\n", now) }
#else
    :: atomic { row && writer == 0 && now > processed_at && now - processed_at > R + S -> row = false; processed_at = 0; printf("the inbox forgets it at %d\n", now) }
#endif
    od
}

/* The clock, relays that publish twice, an operator that accepts a stale dead letter, kills. */
init {
    if :: born = 0 :: born = 2 fi;         /* by the producer's clock, which may be wrong */
    atomic { run Consumer(1); run Consumer(2); run Pruner() };
    do
    :: !over && now < LAST -> now++
    :: atomic { !over && duplicates > 0 -> duplicates--; copies++; printf("the message is published again\n") }
    :: atomic { stale && !accepted && copy[1] == 0 && copy[2] == 0 ->         /* an operator who has looked what became of it */
        accepted = true; accepted_at = now; accepted_copies = 2; dead = false; effects = 0; handled = row;
        printf("an operator accepts it at %d\n", now) }
    :: atomic { trouble > 0 -> trouble--; killed[1] = true }
    :: !over -> over = true
    :: atomic { timeout -> PROPERTY(LOST, handled || dead); break }
    od
}
