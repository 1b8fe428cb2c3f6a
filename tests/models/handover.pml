/* The handover of one slot between two workers: the model of handover.py, for Spin.
 *
 *   spin -DPROMISES=2 -DFORGETS=3 -run -DSAFETY -DBFS handover.pml
 *
 * PROMISES, added up: 1 the fence, 2 exclusion, 4 order. FORGETS: what the one failover of Redis may forget: 0 there is
 * no failover, 1 outcomes, 2 claims, too, 3 the last epoch, too. EPOCHS: most ownerships.
 */
#ifndef PROMISES
#define PROMISES 7
#endif
#ifndef FORGETS
#define FORGETS 0
#endif
#ifndef EPOCHS
#define EPOCHS 3
#endif
#define NOBODY 2
#define me _pid
#define other (1 - _pid)

byte owner = NOBODY;   /* whose owner node stands in ZooKeeper */
byte given;            /* the last epoch that ZooKeeper gave: numbers of creation grow */

byte epoch[2];         /* of the ownership in which a worker believes; 0: none */
bool told[2];          /* Redis was told this epoch, by a claim of nothing */
bool open[2];          /* nothing of an earlier owner was in flight then: it may claim */
bool paused[2];        /* the process stands still */
byte sent[2];          /* epoch of a claim that is on its way */
byte claimed[2];       /* epoch of the claim that it has */
bool handler[2];       /* a handler runs */
bool lease[2];         /* the lease of what it has claimed runs, by the time of day */

byte redis_epoch;      /* in the slot's meta */
bool held[2];          /* something of a worker is in flight */
byte replica_epoch;
bool replica_held[2];
bool failed;

byte highest;          /* the highest epoch that a script has brought */
byte begun;            /* the highest epoch under which a handler has begun */

/* A script that was let in writes its epoch: check_fence.lua and begin_write.lua. */
inline let_in(e) {
  assert(!(PROMISES & 1) || e >= highest);
  redis_epoch = e;
  highest = (e > highest -> e : highest)
}

inline give_up() {
  epoch[me] = 0;
  told[me] = false;
  open[me] = false
}

active [2] proctype worker() {
end:
  do
  /* a claim arrives, whatever became of the worker meanwhile */
  :: d_step { sent[me] && sent[me] < redis_epoch -> sent[me] = 0 }
  :: d_step { sent[me] && sent[me] >= redis_epoch ->
       let_in(sent[me]);
       held[me] = true;
       lease[me] = true;
       claimed[me] = sent[me];
       sent[me] = 0 }

  /* the session ends: only of a worker that stands still, or has given up before, by its watchdog */
  :: d_step { owner == me && (paused[me] || !epoch[me]) -> owner = NOBODY }

  /* leases are renewed, but by who stands still, is fenced, or whose claim Redis has forgotten */
  :: d_step { lease[me] && (paused[me] || claimed[me] < redis_epoch || !held[me]) ->
       lease[me] = false;
       held[me] = false }
  :: d_step { held[me] && !lease[me] -> held[me] = false } /* a failover has brought it back: swept */

  /* a process stands still; when it wakes it looks at its clock before anything else */
  :: d_step { !paused[me] -> paused[me] = true }
  :: d_step { paused[me] ->
       paused[me] = false;
       if
       :: owner != me -> give_up()
       :: else
       fi }

  /* ownership */
  :: d_step { !paused[me] && !epoch[me] && owner == NOBODY && given < EPOCHS ->
       given++;
       owner = me;
       epoch[me] = given;
       told[me] = false;
       open[me] = false }
  :: d_step { !paused[me] && epoch[me] -> give_up() } /* hears nothing of ZooKeeper */
  :: d_step { !paused[me] && epoch[me] -> /* hands the slot over */
       give_up();
       if
       :: owner == me -> owner = NOBODY
       :: else
       fi }
  :: d_step { !paused[me] && epoch[me] && !told[me] ->
       if
       :: epoch[me] >= redis_epoch -> let_in(epoch[me]); told[me] = true
       :: else
       fi }
  :: d_step { !paused[me] && epoch[me] && told[me] && !open[me] && !held[0] && !held[1] -> open[me] = true }

  /* claims and handlers */
  :: d_step { !paused[me] && open[me] && !sent[me] && !claimed[me] && !handler[me] -> sent[me] = epoch[me] }
  :: d_step { !paused[me] && epoch[me] && claimed[me] == epoch[me] && !handler[me] ->
       assert(!(PROMISES & 2) || !(lease[me] && handler[other] && lease[other]));
       assert(!(PROMISES & 4) || claimed[me] >= begun);
       begun = (claimed[me] > begun -> claimed[me] : begun);
       handler[me] = true }
  :: d_step { !paused[me] && claimed[me] && claimed[me] != epoch[me] && !handler[me] && !lease[me] -> claimed[me] = 0 }
  :: d_step { !paused[me] && handler[me] -> /* ends; its ack is let in, or its lease settles it */
       if
       :: held[me] && claimed[me] >= redis_epoch -> let_in(claimed[me]); held[me] = false; lease[me] = false
       :: held[me] && claimed[me] < redis_epoch
       :: !held[me] -> lease[me] = false
       fi;
       handler[me] = false;
       claimed[me] = 0 }
  od
}

#if FORGETS
#define lags (replica_epoch != redis_epoch || replica_held[0] != held[0] || replica_held[1] != held[1])
#if FORGETS == 1
#define may_forget (replica_epoch == redis_epoch && (replica_held[0] || !held[0]) && (replica_held[1] || !held[1]))
#elif FORGETS == 2
#define may_forget (replica_epoch == redis_epoch)
#else
#define may_forget true
#endif

active proctype failover() {
end:
  do
  :: d_step { !failed && lags ->
       replica_epoch = redis_epoch;
       replica_held[0] = held[0];
       replica_held[1] = held[1] }
  :: d_step { !failed && lags && may_forget ->
       redis_epoch = replica_epoch;
       held[0] = replica_held[0];
       held[1] = replica_held[1];
       failed = true }
  od
}
#endif
