/* The ledger with a lease: runs of one request work in steps, outside of any transaction, and a later run may take over.

   A lease may run out at any moment; clocks are not compared. A client comes again until it has an answer.

   run by day: -DKILLS=2
   run by night: -DKILLS=4
*/
#include "property.h"

#define ONCE 1   /* promise 10: the work of the last transaction is committed once */
#define STEPS 2  /* promise 10: a step whose result is recorded is not called again, and its record stays */
#define FENCED 3 /* promise 10: a run that was too slow commits nothing once another one has taken over */
#define STUCK 4  /* promise 10: once all is quiet, every client has its answer */

mtype = { none, processing, done };
mtype state = none; byte token, tokens, steps, effects, kills = KILLS;
bool over, killed[4], answered[4];      /* whether the lease has run out */
byte row_lock;                          /* the client whose open transaction has written the row */
byte runner;                            /* the client that has begun last, as long as its server lives */

#ifdef NO_TOKEN  /* breaks STEPS: a run writes its step whatever has become of the key */
#define may_record (state == processing)
#else
#define may_record (state == processing && token == mine)
#endif
#ifdef TOKEN_LOOKED_UP  /* breaks FENCED: the token is looked up before the last work, and not in the statement that stores the answer */
#define may_answer (state == processing)
#else
#define may_answer (state == processing && token == mine)
#endif
#ifdef TAKEN_WHEN_DONE  /* breaks ONCE: a lease that is over gives the key away, also of a run that has answered */
#define may_take (state == none || over)
#else
#define may_take (state == none || (state == processing && over))
#endif

/* begin, two Steps and complete. Each statement is fenced by the token, and waits for the row's lock. */
proctype Run(byte me) {
    byte mine, finished;
start:
    {
        do
        :: atomic { row_lock == 0 && may_take ->                /* take_key: INSERT … ON CONFLICT DO UPDATE, committed at once */
            tokens++; mine = tokens; token = mine; runner = me; finished = steps; over = false; state = processing;
            printf("client %d begins run %d, after steps %d\n", me, mine, finished) };
            do
            :: finished < 3 ->
                atomic { printf("run %d calls step %d\n", mine, finished);
                    PROPERTY(STEPS, !(state == processing && token == mine && (steps & BIT(finished)))) };
                atomic { row_lock == 0;                         /* keep_steps, in a transaction of its own; it renews the lease */
                    if
                    :: may_record -> PROPERTY(STEPS, (steps & ~(finished * 2 + 1)) == 0);
                        finished = finished * 2 + 1; steps = finished; over = false
                    :: else -> printf("run %d has lost its lease\n", mine); finished = 4
                    fi }
            :: finished == 3 ->
#ifdef ANSWER_APART  /* breaks ONCE: the last work is committed, and the answer in a transaction of its own behind it */
                atomic { if :: may_record -> PROPERTY(ONCE, effects == 0); effects++ :: else -> finished = 4 fi };
                atomic { if :: may_record && finished == 3 -> state = done :: else fi; finished = 4 }
#else
#ifdef TOKEN_LOOKED_UP
                if :: state == processing && token == mine :: else -> finished = 4; break fi;
#endif
                atomic { row_lock == 0; if :: may_answer -> row_lock = me :: else -> finished = 4 fi };  /* record_answer */
                atomic { if :: row_lock == me && finished == 3 -> printf("run %d commits work and answer\n", mine);
                        PROPERTY(ONCE, effects == 0); effects++;
                        PROPERTY(FENCED, token == mine); state = done; row_lock = 0
                    :: else fi; finished = 4 }
#endif
            :: finished == 4 -> break
            od;
            finished = 0
        :: atomic { state == done -> answered[me] = true }; break               /* a replay */
        od
    } unless { killed[me] };
    atomic { printf("the server of run %d is killed\n", mine); killed[me] = false; mine = 0; finished = 0;
        if :: runner == me -> runner = 0 :: else fi;
        if :: row_lock == me -> row_lock = 0 :: else fi };
    if :: !answered[me] -> goto start :: else fi
}

init {
    atomic { run Run(1); run Run(2); run Run(3) };
    do
#ifndef NO_LEASE  /* breaks STUCK: the key of a run that was killed is kept without a lease */
    :: d_step { state == processing && !over && (tokens < 4 || runner == 0) -> over = true; printf("the lease runs out\n") }
#endif
    :: d_step { kills > 0 && !killed[1] -> kills--; killed[1] = true }
    :: atomic { timeout -> PROPERTY(STUCK, answered[1] && answered[2] && answered[3]); break }
    od
}
