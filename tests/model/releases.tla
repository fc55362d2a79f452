------------------------------ MODULE releases ------------------------------
(* One home. Several processes, some with the same request at once, reserve, begin, keep, commit and publish; each may
   be killed between two durable effects, and then runs a request again.

   An action is one durable effect. A process stands at a label; a label with a dot is the crash point of that name in
   dpca/backends/atomic_files.py. Where floating point decides (public inputs that are computed again, the last bits
   of an artifact), each process has bits of its own: its number. *)
EXTENDS Integers, FiniteSets, Sequences

CONSTANTS
  Processes,    \* a set of numbers
  Requests,     \* 1..n; the last one is of a population of its own
  Allowance,    \* what each population's budget holds; a release costs 1
  Ids,          \* 1..n: the keys that may be drawn, each of which names its release
  Rounds,       \* requests that each process makes
  Crashes, Jumps, Losses, Acts,  \* at most so many kills, clocks set forward, keys lost, acts of an operator
  Fault         \* "none", or which fault is planted

Faults == {"same_request", "clock", "last_writer", "key_first", "pointer_first", "begun_late"}

(* Crash points at which nothing durable differs from the point before it: a file that is synced or renamed is the
   effect of the action that writes it, and a row that is written is seen by nobody before it is committed.
   record.committed stands before the witnesses follow, and witness.synced after each of them does, which restored.tla
   distinguishes. *)
Merged == {"file.synced", "file.renamed", "folder.synced", "folder.renamed", "record.committed", "witness.synced",
           "reserve.row_written", "begin.row_written", "keep.row_written", "artifact.staged", "commit.row_written"}

VARIABLES
  pc, requested, mine, held, made, listed,  \* of each process: where it stands, and what it has in memory
  lock,         \* the process whose transaction may write; 0 for none
  rows,         \* the table of releases: state, request, the kept answer, the artifact's digest
  versions,     \* the table of versions of the one name; the place is the number
  noted,        \* whether a row says that the pointer file is as the rows
  drawn, keys, staged, store, shown,    \* keys drawn; files: keys, kept answers, artifacts, the pointer file
  old,          \* keys that a clock takes for older than an hour
  visits, crashes, jumps, losses, acts, gone,
  left, seen, results  \* what happened, which no program reads: answers that left, versions seen, what users got

memory == <<requested, mine, held, made, listed>>
record == <<rows, versions, noted>>
files == <<drawn, keys, staged, store, shown, old>>
counted == <<visits, crashes, jumps, losses, acts, gone>>
history == <<left, seen, results>>
vars == <<pc, memory, lock, record, files, counted, history>>

PaidBy(request) == IF request = Cardinality(Requests) THEN 2 ELSE 1
NoRow == [state |-> "none", request |-> 0, answer |-> 0, digest |-> <<>>]
Of(request) == {r \in Ids : rows[r].state # "none" /\ rows[r].request = request}
Charged(population) == {r \in Ids : rows[r].state \notin {"none", "abandoned"} /\ PaidBy(rows[r].request) = population}
Published(r) == \E n \in DOMAIN versions : versions[n][1] = r
Min(set) == CHOOSE x \in set : \A y \in set : x <= y

Init ==
  /\ pc = [p \in Processes |-> "idle"] /\ lock = 0
  /\ requested = [p \in Processes |-> 0] /\ mine = [p \in Processes |-> 0] /\ held = [p \in Processes |-> 0]
  /\ made = [p \in Processes |-> <<>>] /\ listed = [p \in Processes |-> {}]
  /\ rows = [r \in Ids |-> NoRow] /\ versions = <<>> /\ noted = TRUE
  /\ drawn = 0 /\ keys = {} /\ staged = {} /\ store = {} /\ shown = <<>> /\ old = {}
  /\ visits = [p \in Processes |-> 0] /\ crashes = 0 /\ jumps = 0 /\ losses = 0 /\ acts = 0 /\ gone = {}
  /\ left = {} /\ seen = {} /\ results = {}

At(p, label) == pc[p] = label
Goto(p, label) == pc' = [pc EXCEPT ![p] = label]
Free == lock = 0
Forget(p) == /\ requested' = [requested EXCEPT ![p] = 0] /\ mine' = [mine EXCEPT ![p] = 0] /\ held' = [held EXCEPT ![p] = 0]
             /\ made' = [made EXCEPT ![p] = <<>>] /\ listed' = [listed EXCEPT ![p] = {}]
Refuse(p) == Goto(p, "idle") /\ Forget(p)
(* The request ended at another process: go on with its artifact, or be told that it was given up.
   flows/releases/stages.py made_or_found, storage/ledger/releases.py check_unfinished *)
TakeEnded(p) ==
  LET row == rows[mine[p]] IN
    IF row.state = "committed"
    THEN Goto(p, "artifact.written") /\ made' = [made EXCEPT ![p] = row.digest] /\ UNCHANGED <<requested, mine, held, listed>>
    ELSE Refuse(p)

(* flows/releases/stages.py plan_request: the same request has the same run key *)
Request(p) == \E request \in Requests :
  /\ At(p, "idle") /\ visits[p] < Rounds
  /\ visits' = [visits EXCEPT ![p] = @ + 1] /\ requested' = [requested EXCEPT ![p] = request] /\ Goto(p, "requested")
  /\ UNCHANGED <<mine, held, made, listed, lock, record, files, crashes, jumps, losses, acts, gone, history>>

(* storage/ledger/ledger.py Ledger.reserve: under the locks of the budget and of the ledger, find the run key; else
   admit the charge, and write the key before the row *)
Reserve(p) ==
  /\ At(p, "requested") /\ Free /\ Fault # "same_request"
  /\ IF Of(requested[p]) # {}
     THEN /\ mine' = [mine EXCEPT ![p] = Min(Of(requested[p]))] /\ Goto(p, "granted")
          /\ UNCHANGED <<requested, held, made, listed, lock, files>>
     ELSE IF Cardinality(Charged(PaidBy(requested[p]))) >= Allowance \/ drawn + 1 \notin Ids
     THEN Refuse(p) /\ UNCHANGED <<lock, files>>
     ELSE /\ lock' = p /\ drawn' = drawn + 1 /\ mine' = [mine EXCEPT ![p] = drawn + 1] /\ keys' = keys \cup {drawn + 1}
          /\ Goto(p, "reserve.key_written") /\ UNCHANGED <<requested, held, made, listed, staged, store, shown, old>>
  /\ UNCHANGED <<record, counted, history>>

(* Planted: the run key is searched for before the lock is taken, and no table makes it unique. *)
SearchUnlocked(p) ==
  /\ At(p, "requested") /\ Fault = "same_request"
  /\ IF Of(requested[p]) # {} THEN mine' = [mine EXCEPT ![p] = Min(Of(requested[p]))] /\ Goto(p, "granted")
     ELSE Goto(p, "searched") /\ UNCHANGED mine
  /\ UNCHANGED <<requested, held, made, listed, lock, record, files, counted, history>>
ReserveUnsearched(p) ==
  /\ At(p, "searched") /\ Free /\ Cardinality(Charged(PaidBy(requested[p]))) < Allowance /\ drawn + 1 \in Ids
  /\ lock' = p /\ drawn' = drawn + 1 /\ mine' = [mine EXCEPT ![p] = drawn + 1] /\ keys' = keys \cup {drawn + 1}
  /\ Goto(p, "reserve.key_written")
  /\ UNCHANGED <<requested, held, made, listed, record, staged, store, shown, old, counted, history>>

ReserveRow(p) ==
  /\ At(p, "reserve.key_written")
  /\ rows' = [rows EXCEPT ![mine[p]] = [NoRow EXCEPT !.state = "reserved", !.request = requested[p]]]
  /\ lock' = 0 /\ Goto(p, "reserve.row_committed")
  /\ UNCHANGED <<memory, versions, noted, files, counted, history>>

(* storage/ledger/ledger.py Ledger.begin *)
Begin(p) ==
  /\ pc[p] \in {"reserve.row_committed", "granted"} /\ Free
  /\ CASE rows[mine[p]].state = "reserved" ->
            /\ Goto(p, "begin.row_committed") /\ UNCHANGED memory
            /\ IF Fault = "begun_late" THEN UNCHANGED rows ELSE rows' = [rows EXCEPT ![mine[p]].state = "noising"]
       [] rows[mine[p]].state = "noising" -> Goto(p, "begin.row_committed") /\ UNCHANGED <<memory, rows>>
       [] OTHER -> TakeEnded(p) /\ UNCHANGED rows
  /\ UNCHANGED <<lock, versions, noted, files, counted, history>>

(* dpca_tasks/privacy/gate.py Gate.load_or_store: the kept answer, else one under the release's key, written to a file *)
Compute(p) ==
  LET r == mine[p] row == rows[mine[p]] IN
  /\ At(p, "begin.row_committed") /\ Free
  /\ IF row.state \in {"committed", "abandoned", "closed"} THEN TakeEnded(p) /\ UNCHANGED staged
     ELSE IF row.answer # 0 /\ <<r, row.answer>> \in staged
     THEN /\ held' = [held EXCEPT ![p] = row.answer] /\ Goto(p, "keep.row_committed")
          /\ UNCHANGED <<requested, mine, made, listed, staged>>
     ELSE IF r \notin keys THEN Refuse(p) /\ UNCHANGED staged
     ELSE /\ held' = [held EXCEPT ![p] = p] /\ staged' = staged \cup {<<r, p>>} /\ Goto(p, "keep.file_written")
          /\ UNCHANGED <<requested, mine, made, listed>>
  /\ UNCHANGED <<lock, record, drawn, keys, store, shown, old, counted, history>>

(* storage/ledger/step_answers.py StepStore.keep: the first writer wins; what it wrote alone leaves *)
Keep(p) ==
  LET r == mine[p] row == rows[mine[p]]
      stands == IF row.answer = 0 \/ Fault = "last_writer" THEN held[p] ELSE row.answer IN
  /\ At(p, "keep.file_written") /\ Free
  /\ IF row.state # "noising" /\ Fault # "begun_late"
     THEN TakeEnded(p) /\ staged' = {file \in staged : file[1] # r} /\ UNCHANGED <<rows, left>>
     ELSE IF <<r, stands>> \notin staged THEN Refuse(p) /\ UNCHANGED <<rows, left, staged>>
     ELSE /\ rows' = [rows EXCEPT ![r].answer = stands] /\ held' = [held EXCEPT ![p] = stands]
          /\ left' = left \cup {<<r, stands>>} /\ Goto(p, "keep.row_committed")
          /\ UNCHANGED <<requested, mine, made, listed, staged>>
  /\ UNCHANGED <<lock, versions, noted, drawn, keys, store, shown, old, counted, seen, results>>

(* dpca/artifacts/files.py write_artifact: whole or not at all, under the digest of its bytes *)
WriteArtifact(p) ==
  /\ At(p, "keep.row_committed")
  /\ made' = [made EXCEPT ![p] = <<mine[p], held[p], p>>] /\ store' = store \cup {<<mine[p], held[p], p>>}
  /\ Goto(p, CASE Fault = "key_first" -> "key_first" [] Fault = "pointer_first" -> "pointer_first" [] OTHER -> "artifact.written")
  /\ UNCHANGED <<requested, mine, held, listed, lock, record, drawn, keys, staged, shown, old, counted, history>>

(* Planted: the key and the kept steps go before the commit; and the pointer file is written before it. *)
KeyFirst(p) ==
  /\ At(p, "key_first") /\ keys' = keys \ {mine[p]} /\ staged' = {file \in staged : file[1] # mine[p]}
  /\ Goto(p, "artifact.written")
  /\ UNCHANGED <<memory, lock, record, drawn, store, shown, old, counted, history>>
PointerFirst(p) ==
  /\ At(p, "pointer_first") /\ Free /\ Goto(p, "artifact.written")
  /\ shown' = IF Published(mine[p]) THEN versions ELSE Append(versions, <<mine[p], made[p]>>)
  /\ seen' = seen \cup {<<n, shown'[n][2]>> : n \in DOMAIN shown'}
  /\ UNCHANGED <<memory, lock, record, drawn, keys, staged, store, old, counted, left, results>>

(* storage/workspace.py Workspace.publish, storage/ledger/ledger.py Ledger.commit, storage/registry/publishing.py
   add_version: state, version and the loss of the pointer's row in one transaction; of another artifact, `Finished` *)
Commit(p) ==
  LET r == mine[p] row == rows[mine[p]] IN
  /\ At(p, "artifact.written") /\ Free
  /\ IF row.state = "committed" /\ row.digest # made[p]
     THEN /\ made' = [made EXCEPT ![p] = row.digest]
          /\ UNCHANGED <<pc, requested, mine, held, listed, record>>
     ELSE IF row.state \in {"noising", "committed"} \/ (row.state = "reserved" /\ Fault = "begun_late")
     THEN /\ rows' = [rows EXCEPT ![r].state = "committed", ![r].digest = made[p]]
          /\ IF Published(r) THEN UNCHANGED <<versions, noted>>
             ELSE versions' = Append(versions, <<r, made[p]>>) /\ noted' = FALSE
          /\ Goto(p, "commit.row_committed") /\ UNCHANGED memory
     ELSE Refuse(p) /\ UNCHANGED record
  /\ UNCHANGED <<lock, files, counted, history>>

(* storage/ledger/releases.py ReleaseFiles.forget *)
EraseKey(p) ==
  /\ At(p, "commit.row_committed") /\ keys' = keys \ {mine[p]} /\ Goto(p, "commit.key_erased")
  /\ UNCHANGED <<memory, lock, record, drawn, staged, store, shown, old, counted, history>>
RemoveSteps(p) ==
  /\ At(p, "commit.key_erased") /\ staged' = {file \in staged : file[1] # mine[p]} /\ Goto(p, "commit.staging_removed")
  /\ UNCHANGED <<memory, lock, record, drawn, keys, store, shown, old, counted, history>>

(* storage/registry/publishing.py rebuild_pointers: the file from the rows, its signed copy just before it ("pointer.signed",
   which consumers who pinned a key read, under the same lock and of the same rows), then the row that says so *)
WritePointer(p) ==
  /\ At(p, "commit.staging_removed") /\ Free /\ lock' = p /\ shown' = versions
  /\ seen' = seen \cup {<<n, versions[n][2]>> : n \in DOMAIN versions} /\ Goto(p, "pointer.written")
  /\ UNCHANGED <<memory, record, drawn, keys, staged, store, old, counted, left, results>>
NotePointer(p) ==
  /\ At(p, "pointer.written") /\ noted' = TRUE /\ lock' = 0 /\ Goto(p, "pointer.row_written")
  /\ UNCHANGED <<memory, rows, versions, files, counted, history>>
Return(p) ==
  /\ At(p, "pointer.row_written") /\ results' = results \cup {<<requested[p], made[p]>>} /\ Refuse(p)
  /\ UNCHANGED <<lock, record, files, counted, left, seen>>

(* storage/workspace.py Workspace.open: whoever opens finishes a pointer file that a crash left *)
Reopen(p) ==
  /\ At(p, "idle") /\ Free /\ ~noted
  /\ shown' = versions /\ noted' = TRUE /\ seen' = seen \cup {<<n, versions[n][2]>> : n \in DOMAIN versions}
  /\ UNCHANGED <<pc, memory, lock, rows, versions, drawn, keys, staged, store, old, counted, left, results>>

(* storage/ledger/releases.py ReleaseFiles.sweep: keys of ended releases go, and old keys without a row. They are
   listed while no transaction that draws a key can be under way, and only what was listed goes. *)
ListLeft(p) ==
  /\ At(p, "idle") /\ keys # {} /\ IF Fault = "clock" THEN TRUE ELSE Free
  /\ listed' = [listed EXCEPT ![p] =
       LET ended == {r \in keys : rows[r].state \in {"committed", "abandoned", "closed"}}
           orphans == {r \in keys : rows[r].state = "none"}
       IN IF Fault = "clock" THEN {r \in keys : rows[r].state \in {"reserved", "noising"}} ELSE ended \cup (orphans \cap old)]
  /\ Goto(p, "listed")
  /\ UNCHANGED <<requested, mine, held, made, lock, record, files, counted, history>>
Sweep(p) ==
  /\ At(p, "listed") /\ Goto(p, "idle") /\ listed' = [listed EXCEPT ![p] = {}]
  /\ LET gone_now == IF Fault = "clock" THEN {r \in keys \cap old : r \notin listed[p]} ELSE listed[p]
     IN keys' = keys \ gone_now /\ old' = old \ gone_now /\ staged' = {file \in staged : file[1] \notin gone_now}
  /\ UNCHANGED <<requested, mine, held, made, lock, record, drawn, store, shown, counted, history>>

Crash(p) ==
  /\ pc[p] # "idle" /\ crashes < Crashes /\ crashes' = crashes + 1
  /\ Refuse(p) /\ lock' = IF lock = p THEN 0 ELSE lock
  /\ UNCHANGED <<record, files, visits, jumps, losses, acts, gone, history>>
Jump ==  \* a clock is set forward, or a machine sleeps
  /\ jumps < Jumps /\ jumps' = jumps + 1 /\ keys # old /\ old' = keys
  /\ UNCHANGED <<pc, memory, lock, record, drawn, keys, staged, store, shown, visits, crashes, losses, acts, gone, history>>
LoseKey == \E r \in keys :
  /\ losses < Losses /\ losses' = losses + 1 /\ keys' = keys \ {r} /\ gone' = gone \cup {r}
  /\ UNCHANGED <<pc, memory, lock, record, drawn, staged, store, shown, old, visits, crashes, jumps, acts, history>>
(* storage/ledger/ledger.py Ledger.abandon and Ledger.close, by an operator *)
GiveUp == \E r \in Ids :
  /\ acts < Acts /\ acts' = acts + 1 /\ Free /\ rows[r].state \in {"reserved", "noising"}
  /\ rows' = [rows EXCEPT ![r].state = IF @ = "reserved" THEN "abandoned" ELSE "closed"]
  /\ keys' = keys \ {r} /\ staged' = {file \in staged : file[1] # r}
  /\ UNCHANGED <<pc, memory, lock, versions, noted, drawn, store, shown, old, visits, crashes, jumps, losses, gone, history>>

Step(p) ==
  \/ Reserve(p) \/ SearchUnlocked(p) \/ ReserveUnsearched(p) \/ ReserveRow(p) \/ Begin(p) \/ Compute(p) \/ Keep(p)
  \/ WriteArtifact(p) \/ KeyFirst(p) \/ PointerFirst(p) \/ Commit(p) \/ EraseKey(p) \/ RemoveSteps(p)
  \/ WritePointer(p) \/ NotePointer(p) \/ Return(p) \/ Sweep(p)
Next == (\E p \in Processes : Request(p) \/ Step(p) \/ Reopen(p) \/ ListLeft(p) \/ Crash(p)) \/ Jump \/ LoseKey \/ GiveUp
Spec == Init /\ [][Next]_vars
Fair == Spec /\ \A p \in Processes : WF_vars(Request(p)) /\ WF_vars(Step(p))

-----------------------------------------------------------------------------
Truth(population) == {answer \in left : PaidBy(rows[answer[1]].request) = population}
NeverOverspent == \A population \in {1, 2} :
  /\ Cardinality(Truth(population)) <= Cardinality(Charged(population))
  /\ Cardinality(Charged(population)) <= Allowance
OneAnswerOfAKey == \A one, other \in left : one[1] = other[1] => one = other
EqualRequestsEqualArtifacts ==
  /\ \A one, other \in results : one[1] = other[1] => one = other
  /\ \A request \in Requests : Cardinality(Of(request)) <= 1
NeverRenumbered == \A one, other \in seen : one[1] = other[1] => one = other
OneNumberOfAnArtifact == \A m, n \in DOMAIN versions : versions[m][2] = versions[n][2] => m = n
NothingUnnoised == \A n \in DOMAIN shown : LET version == shown[n] IN
  /\ version[2] \in store /\ <<version[1], version[2][2]>> \in left
  /\ rows[version[1]].state = "committed" /\ rows[version[1]].digest = version[2]
CanFinish == \A r \in Ids : rows[r].state \in {"reserved", "noising"} => r \in keys \cup gone
PointerIsNotedWhenTrue == noted /\ Free => shown = versions
Ends == \A p \in Processes : (pc[p] = "requested") ~> (pc[p] = "idle")
IsPublished == <>(\E n \in DOMAIN shown : TRUE)
=============================================================================
