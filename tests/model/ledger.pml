/* The ledger of requests, in one transaction: two clients send one request, and a third one another request under its key.

   A client whose server is killed, or who hears that the key is busy, comes again. Requests are told apart by fingerprints, 1 and 2.

   run by day: -DKILLS=2
   run by night: -DKILLS=4
*/
#include "property.h"

#define ONCE 1    /* promise 10: the work of a key is committed once */
#define REPLAY 2  /* promise 10: a replay is of the same request, whose work was committed once */
#define TOLD 3    /* promise 10: another request under the key is never told that its own is in progress */
#define STUCK 4   /* promise 10: once all is quiet, every client has its answer */

mtype = { none, processing, done };
mtype row = none; byte row_of;                 /* the row that others see: its state and fingerprint */
byte holder, shared[4];                 /* advisory locks: the key's, and the fingerprints that transactions have published */
byte effects, kills = KILLS;
bool killed[4], answered[4];

#ifdef NO_FINGERPRINT  /* breaks REPLAY: whoever has the key gets its answer, whatever was asked */
#define same_request true
#else
#define same_request (row_of == mine)
#endif

/* ledger.begin and the endpoint behind it. */
proctype Request(byte me; byte mine) {
    bool free, holds;
start:
    {
        free = false;   /* take_alone: the snapshot, the shared lock of the fingerprint, the key's exclusive one, INSERT … ON CONFLICT */
again:  free = (row == none);
        if
        :: !free
#ifdef NO_LOCK_ORDER  /* breaks TOLD: the key's lock is taken first, and the fingerprint published behind it */
        :: free -> atomic { holder == 0 -> holder = me; holds = true; printf("request %d locks the key\n", me) }; shared[me] = mine
        :: free && holder != 0
#else
        :: free -> shared[me] = mine; atomic { if :: holder == 0 -> holder = me; holds = true; printf("request %d locks the key\n", me) :: else fi }
#endif
        fi;
        if
        :: atomic { holds && row == none -> printf("request %d has the key\n", me) };
#ifdef COMMIT_EARLY  /* breaks STUCK: the work is committed with the key, and the answer behind it */
            atomic { row = processing; row_of = mine; effects++ };
#endif
#ifdef WORK_APART  /* breaks ONCE: the work is committed in a transaction of its own, before the key's */
            atomic { printf("request %d does its work\n", me); PROPERTY(ONCE, effects == 0); effects++ };
            atomic { row = done; row_of = mine };
#else
            atomic {                                            /* complete, and the commit of work, row and answer */
                printf("request %d is committed\n", me);
                PROPERTY(ONCE, row == processing || effects == 0); if :: row == none -> effects++ :: else fi;
                row = done; row_of = mine };
#endif
            atomic { holder = 0; shared[me] = 0; holds = false; answered[me] = true }
        :: !holds || row != none ->                             /* a duplicate looks: look_up, held_locks, _judge_row, judge_locks */
            if
            :: atomic { row == done && same_request -> printf("request %d is a replay\n", me);
                PROPERTY(REPLAY, effects == 1 && row_of == mine); answered[me] = true }
            :: atomic { row != none && !same_request -> printf("request %d is a mismatch\n", me); answered[me] = true }
            :: row == processing && same_request
            :: row == none ->
                if
                :: atomic { holder == 0 || holder == me }       /* it has ended: again at once */
                :: atomic { holder != 0 && holder != me && shared[holder] != 0 && shared[holder] != mine ->
                    printf("request %d is a mismatch while the key is busy\n", me); answered[me] = true }
                :: atomic { holder != 0 && holder != me && (shared[holder] == 0 || shared[holder] == mine) ->
                    printf("request %d hears: in progress\n", me); PROPERTY(TOLD, mine == 1 && holder != 3) }
                fi
            fi;
            atomic { if :: holder == me -> holder = 0 :: else fi; shared[me] = 0; holds = false; free = false };
            if :: answered[me] :: !answered[me] && (row != processing) && holder == 0 -> goto again fi
        fi
    ; goto finished } unless { killed[me] };
    atomic { printf("the server of request %d is killed\n", me); killed[me] = false; holds = false; free = false; shared[me] = 0;
        if :: holder == me -> holder = 0 :: else fi };           /* the database rolls back */
    if :: !answered[me] -> goto start :: else fi;
finished:
}

init {
    atomic { run Request(1, 1); run Request(2, 1); run Request(3, 2) };
    do
    :: atomic { kills > 0 && !killed[1] -> kills--; killed[1] = true }
    :: atomic { kills > 0 && !killed[3] -> kills--; killed[3] = true }
    :: atomic { timeout -> PROPERTY(STUCK, answered[1] && answered[2] && answered[3]); break }
    od
}
