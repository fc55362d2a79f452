------------------------------ MODULE restored ------------------------------
(* A home that is backed up, restored in any part to an earlier point, or used in two copies by turns, while processes
   are under way in it; an operator accepts what is locked.

   The database is its journal; a head of the journal is the journal up to there, which is what its hash stands for. *)
EXTENDS Integers, FiniteSets, Sequences

CONSTANTS
  Processes,
  Ids,          \* 1..n: releases; a key is drawn once
  Length,       \* the longest journal that is read
  Crashes, Backups, Restores,  \* at most so many of each
  Fault         \* "none", or which fault is planted

Faults == {"unnoticed", "noted_after", "witness_late", "accepted_unnoted", "under_way"}

VARIABLES
  pc, mine, ours, reached, next,  \* of each process: where it stands, its release, the head it knows, the one it wrote
  lock,
  journal,      \* the database
  beside, separate, noted, numbers,  \* the witnesses' heads; what the separate one noted: releases, and who has which number
  keys, shown,  \* the key folder; the pointer file: whose version has a number, 0 for none
  copy,         \* the newest backup of database, key folder with the witness beside it, and registry
  drawn, crashes, backups, restores,
  truth, seen   \* what happened: releases that noise was drawn for, numbers that consumers saw

process == <<pc, mine, ours, reached, next>>
witness == <<beside, separate, noted, numbers>>
counted == <<drawn, crashes, backups, restores>>
vars == <<process, lock, journal, witness, keys, shown, copy, counted, truth, seen>>

Nobody == [n \in Ids |-> 0]
Entry(kind, r, n) == [kind |-> kind, release |-> r, number |-> n, charged |-> {}, versions |-> Nobody]
In(log, kind) == {log[i].release : i \in {j \in DOMAIN log : log[j].kind = kind}}
Accepted(log) == UNION {log[i].charged : i \in DOMAIN log}
Began(log) == In(log, "begun") \cup Accepted(log)
Charged(log) == In(log, "reserved") \cup Began(log)
VersionIn(log, n) ==
  LET named == {log[i].release : i \in {j \in DOMAIN log : log[j].kind = "committed" /\ log[j].number = n}}
      found == named \cup ({log[i].versions[n] : i \in DOMAIN log} \ {0})
  IN IF found = {} THEN 0 ELSE CHOOSE r \in found : TRUE
Versions(log) == [n \in Ids |-> VersionIn(log, n)]
Committed(log) == {Versions(log)[n] : n \in Ids} \ {0}
Holds(log, head) == Len(head) <= Len(log) /\ SubSeq(log, 1, Len(head)) = head
Strange == \E n \in Ids : shown[n] # 0 /\ Versions(journal)[n] # shown[n]

(* storage/ledger/witness.py Witnesses.check; storage/registry/agreement.py stale_names; storage/registry/publishing.py
   _require_all_shown *)
Locked ==
  /\ Fault # "unnoticed"
  /\ \/ (beside = <<>> /\ Len(journal) > 1) \/ ~Holds(journal, beside) \/ ~Holds(journal, separate) \/ Strange

Init ==
  /\ pc = [p \in Processes |-> "idle"] /\ mine = [p \in Processes |-> 0] /\ ours = [p \in Processes |-> <<>>]
  /\ reached = [p \in Processes |-> <<>>] /\ next = [p \in Processes |-> "idle"] /\ lock = 0
  /\ journal = <<>> /\ beside = <<>> /\ separate = <<>> /\ noted = {} /\ numbers = Nobody
  /\ keys = {} /\ shown = Nobody /\ copy = [journal |-> <<>>, beside |-> <<>>, keys |-> {}, shown |-> Nobody]
  /\ drawn = 0 /\ crashes = 0 /\ backups = 0 /\ restores = 0 /\ truth = {} /\ seen = {}

Set(p, at, r, ourhead, head, then) ==
  /\ pc' = [pc EXCEPT ![p] = at] /\ mine' = [mine EXCEPT ![p] = r] /\ ours' = [ours EXCEPT ![p] = ourhead]
  /\ reached' = [reached EXCEPT ![p] = head] /\ next' = [next EXCEPT ![p] = then]
Goto(p, at) == Set(p, at, mine[p], ours[p], reached[p], next[p])
Refuse(p) == Set(p, "idle", 0, <<>>, <<>>, "idle")
Write(p, entry, then) ==  \* storage/ledger/ledger.py Ledger.transaction: commit, record.committed, then the witnesses
  /\ journal' = Append(journal, entry)
  /\ IF Fault = "witness_late" THEN Set(p, then, entry.release, journal', <<>>, "idle")
     ELSE Set(p, "record.committed", entry.release, ours[p], journal', then)

(* storage/ledger/witness.py Witnesses.follow: each transaction begins by finding what this process knows *)
Known(p) == Fault \in {"under_way", "unnoticed"} \/ Holds(journal, ours[p])
Stop(p) == pc[p] \in {"checked", "open", "granted", "artifact.written", "commit.key_erased"} /\ lock = 0 /\ ~Known(p)
  /\ Refuse(p) /\ UNCHANGED <<lock, journal, witness, keys, shown, copy, counted, truth, seen>>

(* storage/workspace.py open_home: check, and let the witnesses follow what a crash kept them from; only then does
   storage/workspace.py Workspace.open write stale pointer files anew *)
Open(p) ==
  /\ pc[p] = "idle" /\ lock = 0 /\ ~Locked /\ Len(journal) < Length
  /\ Set(p, "record.committed", 0, journal, journal, "checked")
  /\ UNCHANGED <<lock, journal, witness, keys, shown, copy, counted, truth, seen>>
Rebuild(p) ==
  /\ pc[p] = "checked" /\ lock = 0 /\ Known(p) /\ Goto(p, "open")
  /\ shown' = IF Strange THEN shown ELSE Versions(journal)
  /\ seen' = seen \cup {<<n, shown'[n]>> : n \in {m \in Ids : shown'[m] # 0}}
  /\ UNCHANGED <<lock, journal, witness, keys, copy, counted, truth>>

(* storage/ledger/witness.py Witness.advance, the one beside the keys first *)
Follows(p, head) ==
  head = <<>> \/ head = reached[p] \/ head = ours[p] \/ Holds(journal, head) \/ Fault = "unnoticed"
Later(head, other) == IF Len(head) < Len(other) THEN other ELSE head
AdvanceBeside(p) ==
  /\ pc[p] = "record.committed"
  /\ IF Follows(p, beside) THEN beside' = Later(beside, reached[p]) /\ Goto(p, "beside.advanced")
     ELSE UNCHANGED beside /\ Refuse(p)
  /\ UNCHANGED <<lock, journal, separate, noted, numbers, keys, shown, copy, counted, truth, seen>>
AdvanceApart(p) ==
  /\ pc[p] = "beside.advanced"
  /\ IF Follows(p, separate) THEN separate' = Later(separate, reached[p]) /\ Set(p, next[p], mine[p], reached[p], <<>>, "idle")
     ELSE UNCHANGED separate /\ Refuse(p)
  /\ UNCHANGED <<lock, journal, beside, noted, numbers, keys, shown, copy, counted, truth, seen>>

(* storage/ledger/ledger.py Ledger.reserve, or the release of a run key that stands *)
Reserve(p) ==
  /\ pc[p] = "open" /\ lock = 0 /\ Known(p) /\ drawn + 1 \in Ids
  /\ drawn' = drawn + 1 /\ keys' = keys \cup {drawn + 1} /\ Write(p, Entry("reserved", drawn + 1, 0), "granted")
  /\ UNCHANGED <<lock, witness, shown, copy, crashes, backups, restores, truth, seen>>
Find(p) == \E r \in Charged(journal) \ Committed(journal) :
  /\ pc[p] = "open" /\ lock = 0 /\ Known(p) /\ Set(p, "granted", r, ours[p], <<>>, "idle")
  /\ UNCHANGED <<lock, journal, witness, keys, shown, copy, counted, truth, seen>>

(* storage/ledger/ledger.py Ledger.begin: the note is durable before the row is committed *)
NoteBegin(p) ==
  /\ pc[p] = "granted" /\ lock = 0 /\ Known(p)
  /\ IF mine[p] \notin Charged(journal) \/ mine[p] \in Committed(journal)
     THEN Refuse(p) /\ UNCHANGED <<lock, noted>>
     ELSE /\ lock' = p /\ Goto(p, "begin.row_written")
          /\ noted' = IF mine[p] \in Began(journal) \/ Fault = "noted_after" THEN noted ELSE noted \cup {mine[p]}
  /\ UNCHANGED <<journal, beside, separate, numbers, keys, shown, copy, counted, truth, seen>>
CommitBegin(p) ==
  /\ pc[p] = "begin.row_written" /\ lock' = 0
  /\ Write(p, Entry(IF mine[p] \in Began(journal) THEN "resumed" ELSE "begun", mine[p], 0), "begin.row_committed")
  /\ UNCHANGED <<witness, keys, shown, copy, counted, truth, seen>>
NoteLate(p) ==  \* planted: the note comes after the commit
  /\ Fault = "noted_after" /\ pc[p] = "begin.row_committed" /\ mine[p] \notin noted
  /\ \E i \in DOMAIN journal : journal[i] = Entry("begun", mine[p], 0) /\ i = Len(journal)
  /\ noted' = noted \cup {mine[p]}
  /\ UNCHANGED <<process, lock, journal, beside, separate, numbers, keys, shown, copy, counted, truth, seen>>

(* dpca_tasks/privacy/gate.py Gate.load_or_store: noise is drawn once `begin` has returned, so the witnesses know *)
Noise(p) ==
  /\ pc[p] = "begin.row_committed"
  /\ IF mine[p] \in keys THEN truth' = truth \cup {mine[p]} /\ Goto(p, "artifact.written")
     ELSE UNCHANGED truth /\ Refuse(p)
  /\ UNCHANGED <<lock, journal, witness, keys, shown, copy, counted, seen>>

(* storage/ledger/ledger.py Ledger.commit with storage/registry/publishing.py add_version: the note before the commit *)
NoteVersion(p) ==
  /\ pc[p] = "artifact.written" /\ lock = 0 /\ Known(p)
  /\ LET taken == {n \in Ids : Versions(journal)[n] # 0}
         number == CHOOSE n \in 1..(Cardinality(Ids) + 1) : n - 1 \in taken \cup {0} /\ \A m \in taken : m < n
     IN IF mine[p] \notin Began(journal) \/ mine[p] \in Committed(journal) \/ number \notin Ids
        THEN Refuse(p) /\ UNCHANGED <<lock, numbers>>
        ELSE lock' = p /\ numbers' = [numbers EXCEPT ![number] = mine[p]] /\ Goto(p, "commit.row_written")
  /\ UNCHANGED <<journal, beside, separate, noted, keys, shown, copy, counted, truth, seen>>
CommitVersion(p) ==
  /\ pc[p] = "commit.row_written" /\ lock' = 0
  /\ LET taken == {n \in Ids : Versions(journal)[n] # 0}
         number == CHOOSE n \in Ids : n - 1 \in taken \cup {0} /\ \A m \in taken : m < n
     IN Write(p, Entry("committed", mine[p], number), "commit.row_committed")
  /\ UNCHANGED <<witness, keys, shown, copy, counted, truth, seen>>
EraseKey(p) ==
  /\ pc[p] = "commit.row_committed" /\ keys' = keys \ {mine[p]} /\ Goto(p, "commit.key_erased")
  /\ UNCHANGED <<lock, journal, witness, shown, copy, counted, truth, seen>>
(* storage/registry/publishing.py rebuild_pointers: what consumers know is never written over *)
WritePointer(p) ==
  /\ pc[p] = "commit.key_erased" /\ lock = 0 /\ Known(p)
  /\ IF Strange THEN UNCHANGED <<shown, seen>>
     ELSE /\ shown' = Versions(journal)
          /\ seen' = seen \cup {<<n, shown'[n]>> : n \in {m \in Ids : shown'[m] # 0}}
  /\ Refuse(p)
  /\ UNCHANGED <<lock, journal, witness, keys, copy, counted, truth>>

Crash(p) ==
  /\ pc[p] # "idle" /\ crashes < Crashes /\ crashes' = crashes + 1
  /\ Refuse(p) /\ lock' = IF lock = p THEN 0 ELSE lock
  /\ UNCHANGED <<journal, witness, keys, shown, copy, drawn, backups, restores, truth, seen>>

Backup ==
  /\ backups < Backups /\ backups' = backups + 1 /\ lock = 0
  /\ copy' = [journal |-> journal, beside |-> beside, keys |-> keys, shown |-> shown]
  /\ UNCHANGED <<process, lock, journal, witness, keys, shown, drawn, crashes, restores, truth, seen>>
(* Any part is put back, the separate witness never; what stood there may be put back later, as by whoever uses two copies. *)
Restore == \E parts \in (SUBSET {"journal", "keys", "registry"}) \ {{}}, swapped \in BOOLEAN :
  /\ restores < Restores /\ restores' = restores + 1 /\ lock = 0
  /\ journal' = IF "journal" \in parts THEN copy.journal ELSE journal
  /\ beside' = IF "keys" \in parts THEN copy.beside ELSE beside
  /\ keys' = IF "keys" \in parts THEN copy.keys ELSE keys
  /\ shown' = IF "registry" \in parts THEN copy.shown ELSE shown
  /\ copy' = IF swapped THEN [journal |-> journal, beside |-> beside, keys |-> keys, shown |-> shown] ELSE copy
  /\ UNCHANGED <<process, lock, separate, noted, numbers, drawn, crashes, backups, truth, seen>>

(* storage/registry/restored.py accept: enter again what the witness noted and what the registry shows; what was only
   reserved counts as begun. All of it is noted. Where the registry shows other bytes under a number, it refuses. *)
Accept ==
  /\ Locked /\ lock = 0
  /\ LET stood == Versions(journal)
         sound == \A n \in Ids : (shown[n] # 0 /\ stood[n] # 0) => shown[n] = stood[n]
         once == \A m, n \in Ids : (shown[m] # 0 /\ shown[m] = stood[n]) => m = n
         after == [n \in Ids |-> IF stood[n] # 0 THEN stood[n] ELSE shown[n]]
         known == {after[n] : n \in Ids} \ {0}
         all == [n \in Ids |-> IF after[n] = 0 /\ numbers[n] \notin known THEN numbers[n] ELSE after[n]]
         paid == Charged(journal) \cup noted \cup ({all[n] : n \in Ids} \ {0})
         entry == [kind |-> "accepted", release |-> 0, number |-> 0, charged |-> paid, versions |-> all]
     IN /\ sound /\ once /\ journal' = Append(journal, entry) /\ beside' = journal' /\ separate' = journal'
        /\ shown' = all /\ seen' = seen \cup {<<n, all[n]>> : n \in {m \in Ids : all[m] # 0}}
        /\ IF Fault = "accepted_unnoted" THEN UNCHANGED <<noted, numbers>> ELSE noted' = noted \cup paid /\ numbers' = all
  /\ UNCHANGED <<process, lock, keys, copy, counted, truth>>

Step(p) ==
  \/ Reserve(p) \/ Find(p) \/ NoteBegin(p) \/ CommitBegin(p) \/ NoteLate(p) \/ Noise(p) \/ NoteVersion(p)
  \/ CommitVersion(p) \/ Stop(p) \/ Rebuild(p) \/ EraseKey(p) \/ WritePointer(p) \/ AdvanceBeside(p) \/ AdvanceApart(p)
Next == (\E p \in Processes : Open(p) \/ Step(p) \/ Crash(p)) \/ Backup \/ Restore \/ Accept
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
LockedOrPaid == Locked \/ truth \subseteq Charged(journal)
NeverRenumbered == \A one, other \in seen : one[1] = other[1] => one = other
OneNumberOfARelease == \A one, other \in seen : one[2] = other[2] => one = other
ShownIsPaid == \A n \in Ids : shown[n] # 0 => shown[n] \in truth
=============================================================================
