-------------------------------- MODULE sites --------------------------------
(* A joint release over sites, each with a ledger of its own. An aggregator asks, is killed, and asks the same request
   again, perhaps twice at once; sites are killed; messages are lost or come twice. A site's own release goes as in
   releases.tla, with two answers to a request being one. *)
EXTENDS Integers, FiniteSets, Sequences

CONSTANTS
  Sites,        \* 1..n
  Aggregators,  \* processes that run the request
  Needed,       \* sites that an artifact needs; the others may be silent (the roster's dropouts)
  Tries,        \* releases that a site's run key counts: one more after each that was given back
  Room,         \* what the budget of each site holds
  Crashes, Others,  \* at most so many kills; and charges by requests of a site's own
  Fault         \* "none", or which fault is planted

Faults == {"no_run_key", "give_back_begun", "uncharged"}

VARIABLES
  pc, at, got,  \* of each aggregator: where it stands, the site that is next, the sites that answered
  rows,         \* of each site: its releases of this request, by the count of the run key: their states
  others,       \* of each site: charges of its other requests
  version,      \* the aggregator's table of joint versions: the sites of the artifact, published once
  shown, crashes,
  answered      \* what happened: which release of a site gave a masked share with its noise

vars == <<pc, at, got, rows, others, version, shown, crashes, answered>>

Charged(s) == Cardinality({n \in DOMAIN rows[s] : rows[s][n] # "abandoned"}) + others[s]
(* flows/sites/charges.py standing: counted on past releases that were given back *)
Standing(s) == {n \in DOMAIN rows[s] : rows[s][n] # "abandoned"}

Init ==
  /\ pc = [a \in Aggregators |-> "idle"] /\ at = [a \in Aggregators |-> 1] /\ got = [a \in Aggregators |-> {}]
  /\ rows = [s \in Sites |-> <<>>] /\ others = [s \in Sites |-> 0] /\ version = {} /\ shown = {} /\ crashes = 0
  /\ answered = {}

Goto(a, label) == pc' = [pc EXCEPT ![a] = label]
Start(a) == Goto(a, "quoted") /\ at' = [at EXCEPT ![a] = 1] /\ got' = [got EXCEPT ![a] = {}]
Stop(a) == Goto(a, "idle") /\ at' = [at EXCEPT ![a] = 1] /\ got' = [got EXCEPT ![a] = {}]
Last == Cardinality(Sites)

(* flows/sites/parties.py RosterSites.quotes: every budget is asked before any is charged *)
Quote(a) ==
  /\ pc[a] = "idle" /\ \A s \in Sites : Standing(s) # {} \/ Charged(s) < Room
  /\ Start(a) /\ UNCHANGED <<rows, others, version, shown, crashes, answered>>

(* flows/sites/services.py SiteService._reserve: charge, or find the release of the run key. The answer may be lost,
   then the site counts as silent. *)
Reserve(a) == \E lost \in BOOLEAN :
  /\ pc[a] = "quoted" /\ at[a] <= Last
  /\ LET s == at[a] IN
     IF Standing(s) # {} /\ Fault # "no_run_key"
     THEN /\ UNCHANGED rows /\ at' = [at EXCEPT ![a] = s + 1] /\ got' = [got EXCEPT ![a] = IF lost THEN @ ELSE @ \cup {s}]
          /\ UNCHANGED pc
     ELSE IF Charged(s) < Room /\ Len(rows[s]) < Tries
     THEN /\ rows' = [rows EXCEPT ![s] = Append(@, "reserved")] /\ at' = [at EXCEPT ![a] = s + 1]
          /\ got' = [got EXCEPT ![a] = IF lost THEN @ ELSE @ \cup {s}] /\ UNCHANGED pc
     ELSE Goto(a, "giving_back") /\ UNCHANGED <<rows, at, got>>
  /\ UNCHANGED <<others, version, shown, crashes, answered>>
Reserved(a) ==
  /\ pc[a] = "quoted" /\ at[a] > Last
  /\ IF Cardinality(got[a]) >= Needed THEN Goto(a, "asking") /\ UNCHANGED <<at, got>> ELSE Stop(a)
  /\ UNCHANGED <<rows, others, version, shown, crashes, answered>>

(* flows/sites/services.py SiteService._give_back: a reservation that never began, alone *)
GiveBack(a) ==
  /\ pc[a] = "giving_back"
  /\ \E part \in SUBSET got[a] :  \* whoever is not reached keeps its reservation for the next try
       rows' = [s \in Sites |-> [n \in DOMAIN rows[s] |->
         IF s \in part /\ (rows[s][n] = "reserved" \/ (Fault = "give_back_begun" /\ rows[s][n] = "noising"))
         THEN "abandoned" ELSE rows[s][n]]]
  /\ Stop(a) /\ UNCHANGED <<others, version, shown, crashes, answered>>

(* flows/sites/services.py SiteService._share: the site begins its release, and its curator answers *)
Message(a) == \E s \in got[a] :
  /\ pc[a] = "asking" /\ Standing(s) # {}
  /\ \E n \in Standing(s) :
       /\ rows[s][n] \in {"reserved", "noising"}
       /\ rows' = IF Fault = "uncharged" THEN rows ELSE [rows EXCEPT ![s][n] = "noising"]
       /\ answered' = answered \cup {<<s, n>>}
  /\ UNCHANGED <<pc, at, got, others, version, shown, crashes>>
(* flows/sites/releases.py compute_sites: a sum of at least as many sites as are needed; a published one is found *)
Compute(a) == \E part \in SUBSET got[a] :
  /\ pc[a] = "asking"
  /\ IF version # {} THEN part = {} /\ Goto(a, "computed") /\ UNCHANGED got
     ELSE /\ Cardinality(part) >= Needed /\ \A s \in part : \E n \in Standing(s) : <<s, n>> \in answered
          /\ got' = [got EXCEPT ![a] = part] /\ Goto(a, "computed")
  /\ UNCHANGED <<at, rows, others, version, shown, crashes, answered>>
(* flows/sites/releases.py publish_sites, storage/registry/publishing.py add_version: of another artifact, `Conflict` *)
PublishJoint(a) ==
  /\ pc[a] = "computed"
  /\ IF version = {} THEN version' = got[a] /\ Goto(a, "finishing")
     ELSE UNCHANGED version /\ Goto(a, "finishing")
  /\ shown' = shown \cup {version'} /\ at' = [at EXCEPT ![a] = 1]
  /\ UNCHANGED <<got, rows, others, crashes, answered>>
(* flows/sites/services.py SiteService._finish: commit; one that only reserved gives back. A site may be silent. *)
Finish(a) == \E lost \in BOOLEAN :
  /\ pc[a] = "finishing" /\ at[a] <= Last /\ at' = [at EXCEPT ![a] = @ + 1]
  /\ LET s == at[a] IN rows' = IF lost THEN rows ELSE [rows EXCEPT ![s] = [n \in DOMAIN rows[s] |->
       CASE rows[s][n] = "reserved" -> "abandoned" [] rows[s][n] = "noising" -> "committed" [] OTHER -> rows[s][n]]]
  /\ UNCHANGED <<pc, got, others, version, shown, crashes, answered>>
Finished(a) ==
  /\ pc[a] = "finishing" /\ at[a] > Last /\ Stop(a) /\ UNCHANGED <<rows, others, version, shown, crashes, answered>>

OtherCharge == \E s \in Sites :
  /\ others[s] < Others /\ Charged(s) < Room /\ others' = [others EXCEPT ![s] = @ + 1]
  /\ UNCHANGED <<pc, at, got, rows, version, shown, crashes, answered>>
Crash(a) ==
  /\ pc[a] # "idle" /\ crashes < Crashes /\ crashes' = crashes + 1 /\ Stop(a)
  /\ UNCHANGED <<rows, others, version, shown, answered>>

Next ==
  \/ OtherCharge
  \/ \E a \in Aggregators : \/ Quote(a) \/ Reserve(a) \/ Reserved(a) \/ GiveBack(a) \/ Message(a) \/ Compute(a)
                            \/ PublishJoint(a) \/ Finish(a) \/ Finished(a) \/ Crash(a)
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* A share that left was charged by its site, for good. *)
NeverOverspent == \A s \in Sites :
  /\ \A n \in DOMAIN rows[s] : <<s, n>> \in answered => rows[s][n] \in {"noising", "committed"}
  /\ Charged(s) <= Room
ChargedOnce == \A s \in Sites : Cardinality(Standing(s)) <= 1
OneAnswerOfASite == \A one, other \in answered : one[1] = other[1] => one = other
EqualRequestsEqualArtifacts == Cardinality(shown) <= 1
NothingUncharged == \A part \in shown : \A s \in part : \E n \in Standing(s) : <<s, n>> \in answered
=============================================================================
