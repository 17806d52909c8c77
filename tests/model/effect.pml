/* effects.once: runs of one call to a system that knows no keys. The intention is committed before the call.

   -DREPEAT is on_unknown="repeat", otherwise it is "skip". A lease may run out at any moment.

   run by day: -DTROUBLE=2
   run by day: -DTROUBLE=2 -DREPEAT
   run by night: -DTROUBLE=3
   run by night: -DTROUBLE=3 -DREPEAT
*/
#include "property.h"

#define SILENT 1  /* promise 10: a call is made once, and once more only for each report that it is unknown and is repeated */
#define MADE 2    /* promise 10: whoever is told that the call was made is told the truth */
#define AGREED 3  /* promise 10: nobody is told that it was skipped after another was told that it was made, or before */

mtype = { none, started, done, skipped };
mtype state = none; byte token, tokens, calls, reports, trouble = TROUBLE;
bool over, told_made, told_skipped, killed[4], ended[4];

#ifdef NO_TOKEN  /* breaks AGREED: a run records its result although another one has decided meanwhile */
#define is_mine true
#else
#define is_mine (token == mine && state == started)
#endif

/* once: begin_effect, the call, and record or give_up. Each of the three is a transaction that holds the row's lock. */
proctype Run(byte me) {
    byte mine; bool knows;
start:
    {
        do
        :: !ended[me] -> atomic {
            if
            :: state == none -> tokens++; mine = tokens; printf("run %d of %d begins\n", mine, me);
#ifndef NO_INTENTION  /* breaks SILENT: the call is made first, and noted behind it */
                token = mine; state = started; over = false;
#endif
#ifdef RESULT_FIRST  /* breaks MADE: the call counts as made from its beginning on */
                state = done
#endif
            :: state == started && over ->
                tokens++; mine = tokens; token = mine; over = false; knows = true;
#ifdef REPEAT
                reports++; printf("run %d repeats it: it is unknown whether the call was made\n", mine)
#else
                state = skipped; ended[me] = true; told_skipped = true; printf("run %d skips it\n", mine)
#endif
            :: state == skipped -> ended[me] = true; told_skipped = true
            :: state == done -> ended[me] = true; told_made = true; PROPERTY(MADE, calls > 0)
            fi;
            PROPERTY(AGREED, !(told_made && told_skipped)) };
            if
            :: ended[me] || mine == 0
            :: !ended[me] && mine != 0 ->
                if
                :: atomic { printf("run %d makes the call\n", mine); PROPERTY(SILENT, calls <= reports); calls++ };
                    if
                    :: atomic { true -> if :: is_mine -> state = done; told_made = true; ended[me] = true; PROPERTY(MADE, calls > 0)
                            :: else -> printf("run %d has lost its lease\n", mine) fi;
                        PROPERTY(AGREED, !(told_made && told_skipped)) }
                    :: atomic { trouble > 0 -> trouble--; if :: is_mine ->      /* no answer to the call: unknown */
#ifdef ALL_CERTAIN  /* breaks SILENT: any error counts as a call that was not made */
                            state = none
#else
                            over = true
#endif
                            :: else fi; printf("the call of run %d gets no answer\n", mine) }
                    fi
                :: atomic { trouble > 0 -> trouble--; if                 /* refused: certainly not made */
                        :: is_mine && !knows -> state = none
                        :: is_mine && knows -> over = true
                        :: else fi; printf("the call of run %d is refused\n", mine) }
                fi
            fi;
            mine = 0; knows = false
        od
    } unless { killed[me] };
    atomic { printf("the process of %d is killed\n", me); killed[me] = false; mine = 0; knows = false };
    goto start
}

init {
    atomic { run Run(1); run Run(2); run Run(3) };
    do
    :: d_step { state == started && !over && tokens < 5 -> over = true; printf("the lease runs out\n") }
    :: d_step { trouble > 0 && !killed[1] -> trouble--; killed[1] = true }
    :: timeout -> break
    od
}
