r"""A secure sum without a helper, from which the server learns only the sum of all sites' noised integers.

The protocol follows Bonawitz et al. (2017), double masking, in five phases. The file of a phase contains its site
and its server side. All messages go through the server. Every site's message bears its signature under the identity key
that the roster lists.

===============  ===============================================  ======================================================
phase            the server sends                                 each site answers
===============  ===============================================  ======================================================
1 roster         `Begin`: session, round, attempt, digests of     (sends nothing unless its local facts are the same
                 roster with identity keys and of the query       and it never began this attempt; records the start)
2 keys           `KeyList`: all `Keys` as received                `Keys`: two X25519 keys, a commitment to a seed; then
                                                                  `SealedShares`: for each other site, encrypted to it,
                                                                  Shamir shares of that seed and of its masking key
3 shares         `Delivered`: the texts sealed for it by others   `MaskedSum`: integers + own mask + masks of pairs
4 masked sums    `Senders`: the sites whose sum it will open      `SignedSenders`: that set and all that it saw
5 opening        `Signatures`: all of them as received            `OpeningShares`: of each sender the share of its seed,
                                                                  of each other site the share of its masking key
===============  ===============================================  ======================================================

Masks are ChaCha20 words modulo ``2^64``. The seed of a pair is HKDF-SHA256 of its X25519 agreement. It is bound to the
digest of the context (session, round, attempt, roster, identity keys, query) and to the pair. One site adds its words,
the other subtracts them. The server subtracts the senders' own masks from the sum of their messages. It also subtracts
the remaining masks of pairs of a sender and a site that was lost in the meantime. The rest is the integer sum, exactly,
in any order.

**Dropouts.** With S sites, C colluders and D dropouts the threshold is ``t = S - D``. Sites may be lost between any two
phases. While t sites answer, the sum of those whose message arrived is opened, otherwise nothing. The t shares that
open either secret of a site include ``t - C >= 1`` of honest ones, so server and colluders alone open nothing.

**Noise.** An opened sum has at least ``t`` senders. The noise parts of C of them may be known, so at least
``t - C = S - D - C`` parts are unknown. That is the H of `dpca_tasks.sites.roster.Roster`, by which
`dpca_tasks.sites.rounds` calibrates, so that ``v = (Delta / mu)^2 / (t - C)``. The released integers and charges are
the same as with masks from a dealer.

**A dishonest server** may collude with up to C sites. The condition is ``2 t > S + C``; `Participants` that violate it
are refused.

- *One list.* Signatures on `Keys` cover the context. So t of them prove to a site that those sites agreed to the same
  roster and query as the site itself. Sealed shares are bound to the list of keys: a site that was shown another list
  cannot open them, and sends no masked sum.
- *One kind of share.* An honest site gives shares once per attempt, one share of each site, for a set under which it
  saw t signatures. Two sets with t signatures each would need ``2 (t - C) <= S - C`` honest sites, each of which signs
  once. That contradicts the condition. So all honest shares of an attempt are for one set. A seed or a masking key of
  an honest site is opened, never both, and the other one hides its message.
- *One sum.* The noised integers of a round and roster are the same in every attempt. Two sums over different sets
  differ by the integers of some site. Before it sends its shares, a site permanently records the set, under round and
  roster, and never helps to open another set (`Memory`). Two sets would again need ``2 (t - C)`` honest helpers. Even
  if messages are repeated, late or replayed, server and colluders see one sum of these integers with H unknown parts of
  noise: one release. A smaller roster has separate noise and a separate charge.

A message that does not fit is refused by its type, length, context or signature. The refusal is one line that reveals
none of the content, and a refused message changes nothing. Masks hide as far as X25519, HKDF, ChaCha20 and Ed25519 are
secure. A site that sends a false sum corrupts the total, as in any protocol. False shares prevent the opening, which is
then refused, and no wrong total is computed.

A site's secrets of an attempt are in memory alone. If its process ends, the site joins the next attempt, which costs
nothing.

References
----------
Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth (2017), Practical secure aggregation for
privacy-preserving machine learning: the protocol of figure 4, with signed keys and the consistency check.
"""
