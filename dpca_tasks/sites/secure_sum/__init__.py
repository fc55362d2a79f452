r"""A secure sum without a helper: the server learns the sum of all sites' noised integers, and nothing else.

Bonawitz et al. (2017), double masking, in five phases; each has a file, where both sides of it stand. All messages go
through the server, and every site's message bears its signature, under the identity key that the roster names.

===============  ===============================================  ======================================================
phase            the server sends                                 each site answers
===============  ===============================================  ======================================================
1 roster         `Begin`: session, round, attempt, digests of     (nothing leaves unless it knows the same itself, and
                 roster with identity keys and of the query       never began this attempt; it notes that it has now)
2 keys           `KeyList`: all `Keys` as they came               `Keys`: two X25519 keys, a commitment to a seed; then
                                                                  `SealedShares`: for each other site, encrypted to it,
                                                                  Shamir shares of that seed and of its masking key
3 shares         `Delivered`: what the others sealed for it       `MaskedSum`: integers + own mask + masks of pairs
4 masked sums    `Senders`: those whose sum it will open          `SignedSenders`: that set and all that it saw
5 opening        `Signatures`: all of them as they came           `OpeningShares`: of each sender the share of its seed,
                                                                  of each other site the share of its masking key
===============  ===============================================  ======================================================

Masks are ChaCha20 words modulo ``2^64``. The seed of a pair is HKDF-SHA256 of its X25519 agreement, bound to the digest
of the context (session, round, attempt, roster, identity keys, query) and to the pair; one site adds its words, the
other subtracts them. The server takes the senders' own masks off the sum of their messages, and the masks that pairs of
a sender and a site lost since have left in it: the rest is the integer sum, exactly, in any order.

**Who stays.** With S sites, C colluders and D dropouts the threshold is ``t = S - D``. Sites may be lost between any
two phases; while t answer, the sum of those whose message came is opened, else nothing. The t shares that open either
secret of a site include ``t - C >= 1`` of honest ones, so server and colluders alone open nothing.

**Noise.** An opened sum has ``t`` senders at least, of whose noise C parts may be known: at least ``t - C = S - D - C``
parts are not. That is the H of `dpca_tasks.sites.roster.Roster`, by which `dpca_tasks.sites.rounds` calibrates, so that
``v = (Delta / mu)^2 / (t - C)``: the released integers and charges are those of masks from a dealer.

**A lying server**, and up to C sites with it. The condition is ``2 t > S + C``; a `Participants` without it is refused.

- *One list.* Signatures on `Keys` cover the context, so a site that sees t of them knows that those sites agreed to its
  own roster and query. Sealed shares are bound to the list of keys: who was shown another list cannot open them, and
  sends no masked sum.
- *One kind of share.* An honest site gives shares once an attempt, of each site one, for a set under which it saw t
  signatures. Two sets with t signatures each would need ``2 (t - C) <= S - C`` honest ones, each of which signs once;
  that contradicts the condition. So all honest shares of an attempt are for one set: a seed or a masking key of an
  honest site is opened, never both, and its message is hidden by the other.
- *One sum.* The noised integers of a round and roster are the same in every attempt, and two sums of them differ by a
  site's. Before its shares leave, a site notes the set for good, under round and roster, and helps no other set again
  (`Memory`). Two sets would again need ``2 (t - C)`` honest helpers. Whatever is sent again, late or replayed, server
  and colluders see one sum of these integers with H unknown parts of noise: one release. A smaller roster has noise
  of its own and a charge of its own.

What does not fit is refused by its type, length, context or signature, in one line that tells none of its content; a
refused message changes nothing. Masks hide as far as X25519, HKDF, ChaCha20 and Ed25519 hold. A site that sends a false
sum spoils the total, as everywhere; false shares spoil the opening, which is then refused and no wrong total made.

A site's secrets of an attempt are in memory alone: a killed one joins the next attempt, which costs nothing.

References
----------
Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth (2017), Practical secure aggregation for
privacy-preserving machine learning: the protocol of figure 4, with signed keys and the consistency check.
"""
