/* The shards of an ordered queue: the messages of one key, whose queue is another one after each change of their number.

   The first change moves the key from queue 0 to queue 1, the second one back. Two processes have a consumer of each
   queue that they take for theirs, by an agreement that they may have read long ago. The broker gives a queue's messages
   to one of its consumers at a time. A message is handled and acked, or handled and given out again.

   run by day: -DMESSAGES=2 -DMOVES=1 -DTROUBLE=1
   run by night: -DMESSAGES=2 -DMOVES=1 -DTROUBLE=2
   run by night: -DMESSAGES=3 -DMOVES=2 -DTROUBLE=0
   run broken: -DMESSAGES=2 -DMOVES=2 -DTROUBLE=0
*/
#include "property.h"

#define ORDER 1  /* promise 6: a message is handled behind all earlier ones of its key */
#define LOST 2   /* promise 1: once all is quiet, each message was handled */

#define LENGTH 12
#define MARKER 10            /* an item of a queue: a message, or MARKER + the number of a change */
#define home (move & 1)      /* the queue of the key after the latest change */
#define old (1 - home)

mtype = { settled, written, routed, marked, known };
mtype phase = settled;       /* of the agreement: a change is written, routed, its end marked, and the keys left are known */
byte move, trouble = TROUBLE, sent, handled;
bool bound[2]; byte flying[2];

typedef Queue { byte item[LENGTH]; byte size; byte served };  /* served: 1 + the process whose consumer is served */
Queue queue[2];

typedef Consumer { bool runs; byte move; byte passed; bool holds };  /* what its process has read of the agreement */
Consumer consumer[4];        /* of process p and queue n: 2 * p + n */
#define of(p, n) consumer[2 * p + n]

inline append(n, what) { queue[n].item[queue[n].size] = what; queue[n].size++ }

inline remove(n, at) {
    for (k : at .. LENGTH - 2) { queue[n].item[k] = queue[n].item[k + 1] };
    queue[n].item[LENGTH - 1] = 0; queue[n].size--; k = 0
}

/* The relay: a message goes to the queues that are bound when it is published. It is published again without a confirm. */
proctype Relay() {
    do
    :: atomic { sent < MESSAGES && !flying[0] && !flying[1] ->
        /* at least one is bound */
        if :: bound[0] -> flying[0] = sent + 1 :: else fi;
        if :: bound[1] -> flying[1] = sent + 1 :: else fi;
        printf("message %d is published\n", sent + 1) };
        if
        :: atomic { !flying[0] && !flying[1] -> sent++ }
        :: atomic { trouble > 0 && !flying[0] && !flying[1] -> trouble--; printf("it is not confirmed\n") }
        fi
    :: sent == MESSAGES -> break
    od
}

proctype Arrival(byte n) {
    do
    :: atomic { flying[n] -> append(n, flying[n]); printf("message %d is in queue %d\n", flying[n], n); flying[n] = 0 }
    od
}

/* ShardedConsumer._agree: the steps of a change, by any process, under a lock. One that dies before its commit is repeated. */
proctype Change() {
    do
    :: atomic { phase == settled && move < MOVES -> move++; phase = written; printf("change %d is written\n", move) }
    :: phase == written ->
#ifndef NO_BEGINNING  /* breaks ORDER: the beginning of a change is not marked in the new queue */
        atomic { append(home, MARKER + move); printf("queue %d gets the marker of change %d\n", home, move) };
#endif
        bound[home] = true;
        atomic { bound[old] = false; printf("queue %d is bound, and no other\n", home) };
        if
        :: phase = routed
        :: atomic { trouble > 0 -> trouble--; printf("the process of the change dies\n") }
        fi
    :: phase == routed ->
#ifdef NO_SETTLE  /* breaks ORDER: the end is marked although a message that was routed before has not arrived */
        skip;
#else
        !flying[old];
#endif
        atomic { append(old, MARKER + move); printf("the end of queue %d is marked\n", old) };
        if
        :: phase = marked
        :: atomic { trouble > 0 -> trouble--; printf("the process of the change dies\n") }
        fi
    od
}

#define drained(n) (phase != settled && phase != written && n == old)
#ifdef OPEN_EARLY  /* breaks ORDER: new shards are consumed before it is known which keys are left in old ones */
#define is_open (phase != written)
#else
#define is_open (phase == settled || phase == known)
#endif
#define is_its(n) (drained(n) || (is_open && n == home))
#ifdef NO_HOLD  /* breaks ORDER: new shards are consumed while messages of the key are left in old ones */
#define is_held(n) false
#else
#define is_held(n) (phase == known && n == home)
#endif
#ifdef ACK_AT_ONCE  /* breaks ORDER: a marker is acked as soon as a consumer knows of its change */
#define is_passed(n) (drained(n) -> move - 1 : move)
#else
#define is_passed(n) (phase == settled -> move : move - 1)
#endif
#define is_news(p, n) (of(p, n).runs != is_its(n) || (of(p, n).runs && (of(p, n).move != move || \
    of(p, n).holds != is_held(n) || of(p, n).passed != is_passed(n))))

/* ShardedConsumer._follow and RabbitSubscriber.follow: what a process reads, and which queues it consumes by it. */
inline read(p, n) {
    of(p, n).move = move; of(p, n).holds = is_held(n); of(p, n).passed = is_passed(n);
    find(p, n);  /* acks markers, also before it stops */
    of(p, n).runs = is_its(n);
    if :: !is_its(n) && queue[n].served == p + 1 -> queue[n].served = 0 :: else fi;
    printf("process %d reads of change %d, for queue %d\n", p, move, n); at = 0; found = 0
}

/* The first message that the consumer may handle: nothing behind the marker of a change that it does not know. */
inline find(p, n) {
    at = 0; found = 0;
    do
    :: queue[n].served != p + 1 || at == queue[n].size || found -> break
    :: else ->
        if
        :: queue[n].item[at] < MARKER -> found = queue[n].item[at]
        :: queue[n].item[at] > MARKER && queue[n].item[at] - MARKER <= of(p, n).passed -> remove(n, at)
        :: queue[n].item[at] > MARKER && queue[n].item[at] - MARKER > of(p, n).passed ->
            if :: queue[n].item[at] - MARKER <= of(p, n).move -> at++ :: else -> break fi
        fi
    od
}

/* RabbitSubscriber.keys_left: whether messages stand before the end, as far as that has come. */
inline keys_left(n) {
    at = 0; found = 0;
    do
    :: at < queue[n].size && queue[n].item[at] != MARKER + move ->
        if :: queue[n].item[at] < MARKER -> found = 1 :: else fi; at++
    :: else -> break
    od;
    if
    :: at == queue[n].size
    :: at < queue[n].size && found -> phase = known
    :: at < queue[n].size && !found -> phase = settled; printf("queue %d is empty: change %d has ended\n", n, move)
    fi;
    at = 0; found = 0
}

/* Consumer: the handler's effects and the inbox row are one commit, and a second one does nothing. */
inline handle(p, n) {
    find(p, n);
    if
    :: found ->
        printf("process %d handles message %d of queue %d\n", p, found, n); PROPERTY(ORDER, found <= handled + 1);
#ifdef ACK_FIRST  /* breaks LOST: a message is acked before it is handled */
        remove(n, at); if :: handled = found :: queue[n].served = 0 fi
#else
        if :: found > handled -> handled = found :: else fi;
        if :: remove(n, at) :: trouble > 0 -> trouble--; queue[n].served = 0; printf("it is given out again\n") fi
#endif
    :: else
    fi;
    at = 0; found = 0
}

proctype Process(byte p) {
    byte at, found, k;
    do
    :: d_step { is_news(p, 0) -> read(p, 0) }
    :: d_step { is_news(p, 1) -> read(p, 1) }
    :: d_step { of(p, 0).runs && !queue[0].served -> queue[0].served = p + 1 }
    :: d_step { of(p, 1).runs && !queue[1].served -> queue[1].served = p + 1 }
    :: d_step { trouble > 0 && queue[0].served == p + 1 -> queue[0].served = 0; trouble--; printf("process %d is cut from queue 0\n", p) }
    :: d_step { trouble > 0 && queue[1].served == p + 1 -> queue[1].served = 0; trouble--; printf("process %d is cut from queue 1\n", p) }
    :: d_step { (phase == marked || phase == known) && queue[old].served == p + 1 && of(p, old).move == move -> keys_left(old) }
    :: atomic { queue[0].served == p + 1 && queue[0].size && !of(p, 0).holds -> handle(p, 0) }
    :: atomic { queue[1].served == p + 1 && queue[1].size && !of(p, 1).holds -> handle(p, 1) }
    od
}

init {
    atomic { bound[0] = true; run Relay(); run Arrival(0); run Arrival(1); run Change(); run Process(0); run Process(1) };
    if                          /* the queues are empty, or nobody can do anything any more */
    :: atomic { sent == MESSAGES && phase == settled && queue[0].size == 0 && queue[1].size == 0 -> PROPERTY(LOST, handled == MESSAGES) }
    :: atomic { timeout -> PROPERTY(LOST, handled == MESSAGES) }
    fi
}
