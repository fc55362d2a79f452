------------------------------- MODULE streams -------------------------------
(* A stream that is charged beforehand, for some ticks and then for more by instalments. Its slots fire at several
   processes, also again and at once, while data are ingested, a clock is set back and processes are killed.

   A tick's own release goes as in releases.tla; here its answer is one effect, and what follows it others. *)
EXTENDS Integers, FiniteSets, Sequences

CONSTANTS
  Processes,
  Slots,        \* 1..n: of the schedule, in their order
  Paid,         \* ticks that are paid for at first; an instalment pays for one more, up to one a slot
  Instalments, Ingests, Crashes, Jumps, Closes,  \* at most so many of each
  Fault         \* "none", or which fault is planted

Faults == {"clock", "unbound", "unpaid", "answer_late", "two_ticks"}

VARIABLES
  pc, slot,     \* of each process: where it stands, and the slot that it runs
  lock,
  paid, live, closed,   \* the stream's charge, in ticks; whether it is live; ticks that an operator gave up
  ticks,        \* the table of ticks: slot, snapshot, state, whether its answer is noted
  keys, store, shown,   \* ticks that have a key; answers in the stream's store; versions in the pointer file
  times,        \* of each snapshot, in the order of the journal, the time that a wall clock gave it
  now, crashes, jumps, instalments,
  answers       \* what happened: answers that left, each a tick and the snapshot that it was computed on

local == <<pc, slot>>
record == <<paid, live, closed, ticks>>
files == <<keys, store, shown>>
counted == <<now, crashes, jumps, instalments>>
vars == <<local, lock, record, files, times, counted, answers>>

None == 0
TickOf(s) == IF \E t \in DOMAIN ticks : ticks[t].slot = s THEN CHOOSE t \in DOMAIN ticks : ticks[t].slot = s ELSE None
Settled(t) == ticks[t].state \in {"committed", "closed"}
(* storage/ledger/stream_rows.py newest_snapshot: by the journal's order; planted: by the clock's *)
Newest ==
  IF Fault # "clock" THEN Len(times)
  ELSE CHOOSE n \in DOMAIN times : \A m \in DOMAIN times : times[m] < times[n] \/ (times[m] = times[n] /\ m <= n)

Init ==
  /\ pc = [p \in Processes |-> "idle"] /\ slot = [p \in Processes |-> None] /\ lock = None
  /\ paid = Paid /\ live = TRUE /\ closed = 0 /\ ticks = <<>> /\ keys = {} /\ store = {} /\ shown = {}
  /\ times = <<1>> /\ now = 2 /\ crashes = 0 /\ jumps = 0 /\ instalments = 0 /\ answers = {}

Goto(p, at) == pc' = [pc EXCEPT ![p] = at]
End(p) == Goto(p, "idle") /\ slot' = [slot EXCEPT ![p] = None]
Mine(p) == TickOf(slot[p])

(* flows/releases/streams.py make_tick: a tick that an earlier slot left under way is finished first *)
Fire(p) == \E s \in Slots :
  /\ pc[p] = "idle" /\ (s = 1 \/ TickOf(s - 1) # None \/ TickOf(s) # None)
  /\ LET unfinished == {t \in DOMAIN ticks : ~Settled(t)}
     IN slot' = [slot EXCEPT ![p] = IF unfinished # {} /\ Fault # "two_ticks"
                                    THEN ticks[CHOOSE t \in unfinished : TRUE].slot ELSE s]
  /\ Goto(p, "fired")
  /\ UNCHANGED <<lock, record, files, times, counted, answers>>

(* storage/ledger/streams.py Streams.begin_tick: under the budget's lock, the slot's tick, or the next one; bind_tick
   writes its key before the row, and check_next lets in what is paid for, in order, while the stream lives *)
FindTick(p) ==
  /\ pc[p] = "fired" /\ lock = None /\ Mine(p) # None
  /\ IF ticks[Mine(p)].state = "closed" THEN End(p) ELSE Goto(p, "tick.row_committed") /\ UNCHANGED slot
  /\ UNCHANGED <<lock, record, files, times, counted, answers>>
BindTick(p) ==
  /\ pc[p] = "fired" /\ lock = None /\ Mine(p) = None
  /\ IF /\ live /\ (Len(ticks) < paid \/ Fault = "unpaid")
        /\ (\A t \in DOMAIN ticks : Settled(t)) \/ Fault = "two_ticks"
     THEN lock' = p /\ keys' = keys \cup {Len(ticks) + 1} /\ Goto(p, "tick.key_written") /\ UNCHANGED slot
     ELSE End(p) /\ UNCHANGED <<lock, keys>>
  /\ UNCHANGED <<record, store, shown, times, counted, answers>>
EnterTick(p) ==  \* tick.row_written, then the commit
  /\ pc[p] = "tick.key_written" /\ lock' = None /\ Goto(p, "tick.row_committed")
  /\ ticks' = Append(ticks, [slot |-> slot[p], snapshot |-> Newest, state |-> "noising", noted |-> FALSE])
  /\ UNCHANGED <<slot, paid, live, closed, files, times, counted, answers>>

(* flows/releases/streams.py _answer: under the tick's key, on the snapshot that it is bound to; the kept step is
   the answer whoever computes (releases.tla). Planted: on the newest snapshot, while no step is kept yet. *)
Answer(p) ==
  /\ pc[p] = "tick.row_committed" /\ lock = None
  /\ CASE ticks[Mine(p)].state = "closed" -> End(p) /\ UNCHANGED answers
       [] ticks[Mine(p)].state = "committed" -> Goto(p, "committed") /\ UNCHANGED <<slot, answers>>
       [] OTHER -> IF Mine(p) \notin keys THEN End(p) /\ UNCHANGED answers
                   ELSE /\ answers' = answers \cup {<<Mine(p), IF Fault = "unbound" THEN Newest ELSE ticks[Mine(p)].snapshot>>}
                        /\ Goto(p, IF Fault = "answer_late" THEN "artifact.written" ELSE "answered") /\ UNCHANGED slot
  /\ UNCHANGED <<lock, record, files, times, counted>>
(* storage/ledger/stream_rows.py keep_answer, then storage/ledger/streams.py Streams.answered *)
CopyAnswer(p) ==
  /\ pc[p] = "answered" /\ store' = store \cup {Mine(p)} /\ Goto(p, "answer.file_written")
  /\ UNCHANGED <<slot, lock, record, keys, shown, times, counted, answers>>
NoteAnswer(p) ==  \* answer.row_written, then the commit
  /\ pc[p] = "answer.file_written" /\ lock = None /\ Goto(p, "answer.row_committed")
  /\ ticks' = [ticks EXCEPT ![Mine(p)].noted = TRUE]
  /\ UNCHANGED <<slot, lock, paid, live, closed, files, times, counted, answers>>
(* flows/releases/streams.py publish_tick: commit, erase the key, write the pointer file *)
CommitTick(p) ==
  /\ pc[p] \in {"answer.row_committed", "artifact.written"} /\ lock = None
  /\ IF ticks[Mine(p)].state = "closed" THEN End(p) /\ UNCHANGED ticks
     ELSE ticks' = [ticks EXCEPT ![Mine(p)].state = "committed"] /\ Goto(p, "committed") /\ UNCHANGED slot
  /\ UNCHANGED <<lock, paid, live, closed, files, times, counted, answers>>
EraseKey(p) ==
  /\ pc[p] = "committed" /\ keys' = keys \ {Mine(p)} /\ Goto(p, "commit.key_erased")
  /\ UNCHANGED <<slot, lock, record, store, shown, times, counted, answers>>
LateAnswer(p) ==  \* planted: the answer is copied to the store when its key is gone
  /\ Fault = "answer_late" /\ pc[p] = "commit.key_erased" /\ Mine(p) \notin store
  /\ store' = store \cup {Mine(p)} /\ ticks' = [ticks EXCEPT ![Mine(p)].noted = TRUE]
  /\ UNCHANGED <<local, lock, paid, live, closed, keys, shown, times, counted, answers>>
Publish(p) ==
  /\ pc[p] = "commit.key_erased" /\ lock = None /\ (Fault = "answer_late" => Mine(p) \in store)
  /\ shown' = {t \in DOMAIN ticks : ticks[t].state = "committed"} /\ End(p)
  /\ UNCHANGED <<lock, record, keys, store, times, counted, answers>>

Ingest ==
  /\ Len(times) < Ingests /\ times' = Append(times, now) /\ now' = now + 1
  /\ UNCHANGED <<local, lock, record, files, crashes, jumps, instalments, answers>>
SetClockBack ==
  /\ jumps < Jumps /\ jumps' = jumps + 1 /\ now' = 0
  /\ UNCHANGED <<local, lock, record, files, times, crashes, instalments, answers>>
(* storage/ledger/streams.py Streams.extend: charged and begun in one transaction (stream.row_written, and
   stream.row_committed after it); asked twice, it is charged once *)
Extend ==
  /\ live /\ lock = None /\ instalments < Instalments /\ paid < Cardinality(Slots)
  /\ instalments' = instalments + 1 /\ paid' = paid + 1
  /\ UNCHANGED <<local, lock, live, closed, ticks, files, times, now, crashes, jumps, answers>>
(* storage/ledger/streams.py Streams.close_tick and Streams.close *)
CloseTick == \E t \in DOMAIN ticks :
  /\ lock = None /\ closed < Closes /\ ticks[t].state = "noising" /\ closed' = closed + 1
  /\ ticks' = [ticks EXCEPT ![t].state = "closed"] /\ keys' = keys \ {t}
  /\ UNCHANGED <<local, lock, paid, live, store, shown, times, counted, answers>>
Close ==
  /\ lock = None /\ live /\ closed < Closes /\ closed' = closed + 1 /\ live' = FALSE
  /\ ticks' = [t \in DOMAIN ticks |-> [ticks[t] EXCEPT !.state = IF @ = "noising" THEN "closed" ELSE @]]
  /\ keys' = {t \in keys : t \in DOMAIN ticks /\ ticks[t].state = "committed"}
  /\ UNCHANGED <<local, lock, paid, store, shown, times, counted, answers>>
Crash(p) ==
  /\ pc[p] # "idle" /\ crashes < Crashes /\ crashes' = crashes + 1 /\ End(p)
  /\ lock' = IF lock = p THEN None ELSE lock
  /\ UNCHANGED <<record, files, times, now, jumps, instalments, answers>>

Step(p) ==
  \/ FindTick(p) \/ BindTick(p) \/ EnterTick(p) \/ Answer(p) \/ CopyAnswer(p) \/ NoteAnswer(p) \/ CommitTick(p)
  \/ EraseKey(p) \/ LateAnswer(p) \/ Publish(p)
Next == (\E p \in Processes : Fire(p) \/ Step(p) \/ Crash(p)) \/ Ingest \/ SetClockBack \/ Extend \/ CloseTick \/ Close
Spec == Init /\ [][Next]_vars
Fair == Spec /\ \A p \in Processes : WF_vars(Step(p))

-----------------------------------------------------------------------------
NeverOverspent == Cardinality({answer[1] : answer \in answers}) <= paid /\ Len(ticks) <= paid
OneAnswerOfAKey == \A one, other \in answers : one[1] = other[1] => one = other
AsBound == \A answer \in answers : answer[2] = ticks[answer[1]].snapshot
OneTickOfASlot == \A t, u \in DOMAIN ticks : ticks[t].slot = ticks[u].slot => t = u
InOrder == \A t, u \in DOMAIN ticks : t < u => ticks[t].slot < ticks[u].slot /\ ticks[t].snapshot <= ticks[u].snapshot
OneUnderWay == Cardinality({t \in DOMAIN ticks : ~Settled(t)}) <= 1
NothingUnnoised == \A t \in shown : \E answer \in answers : answer[1] = t
(* What is committed cannot be answered again, so a copy of its answer stands wherever its key may be gone. *)
AnswersAreKept == \A t \in DOMAIN ticks : ticks[t].state = "committed" => t \in store /\ ticks[t].noted
CanFinish == \A t \in DOMAIN ticks : ticks[t].state = "noising" => t \in keys
NewestIsIngestedLast == [][Len(ticks') > Len(ticks) => ticks'[Len(ticks')].snapshot = Len(times)]_vars
Ends == \A p \in Processes : (pc[p] = "fired") ~> (pc[p] = "idle")
=============================================================================
