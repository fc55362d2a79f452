r"""A secure sum without a trusted dealer: the server learns only the sum of all sites' noised integers.

The protocol is the double masking of Bonawitz et al. (2017), in five phases. The file of a phase contains the code of
the sites and of the server. All messages pass through the server. Each site signs its messages with its identity key,
whose public part is in the roster.

===============  ===============================================  ======================================================
phase            the server sends                                 each site answers
===============  ===============================================  ======================================================
1 roster         `Begin`: session, round, attempt, digests of     (sends nothing unless its local facts are the same
                 roster with identity keys and of the query       and it never began this attempt; records the start)
2 keys           `KeyList`: all `Keys` as received                `Keys`: two X25519 keys, a commitment to a seed; then
                                                                  `SealedShares`: for each other site, encrypted to it,
                                                                  Shamir shares of that seed and of its masking key
3 shares         `Delivered`: the shares encrypted for this site  `MaskedSum`: integers + own mask + masks of pairs
4 masked sums    `Senders`: the sites whose sum it will open      `SignedSenders`: that set, a hash of what it received
5 opening        `Signatures`: all of them as received            `OpeningShares`: for each sender a share of its seed,
                                                                  for each other site a share of its masking key
===============  ===============================================  ======================================================

Masks are ChaCha20 words modulo ``2^64``. The seed of a pair's mask is derived by HKDF-SHA256 from the X25519 secret of
the pair, the digest of the context (session, round, attempt, roster, identity keys, query), and the places of both
sites. One site adds the words, and the other subtracts them. From the sum of the masked sums, the server subtracts the
senders' own masks. It also subtracts the masks of each pair of a sender and a site that was lost before it sent its
masked sum. The rest is exactly the sum of the integers.

**Dropouts.** With S sites, C colluders and D dropouts, the threshold is ``t = S - D``. Sites may be lost between any
two phases. If at least t sites answer in every phase, the sum over the sites whose masked sum arrived is opened.
Otherwise nothing is opened. A secret of a site can only be recovered from t shares, at least ``t - C >= 1`` of which
come from honest sites. So server and colluders alone recover nothing.

**Noise.** An opened sum has at least t senders. The noise of C of them may be known, so at least ``t - C = S - D - C``
shares of noise are unknown. This number is the H of `dpca_tasks.sites.roster.Roster`, for which
`dpca_tasks.sites.rounds` calibrates the noise. The released integers and the charges are the same as with masks from a
dealer.

**A dishonest server** may collude with up to C sites. The protection requires ``2 t > S + C``; `Participants` refuses
rosters that violate this condition.

- *One list.* Signatures on `Keys` cover the context. So t of them prove to a site that those sites agreed to the same
  roster and query as the site itself. Encrypted shares are bound to the list of keys: a site that was shown another
  list cannot decrypt them, and sends no masked sum.
- *One kind of share.* In an attempt, an honest site reveals one share for each site, and only for a set of senders that
  has t signatures. Suppose that two sets had t signatures each. Then at least ``t - C`` honest sites would have signed
  each set. An honest site signs one set only, so ``2 (t - C) <= S - C``, which contradicts the condition. So all honest
  shares of an attempt are for one set. For an honest site, either the seed or the masking key is recovered, never both,
  and the other secret hides the site's message.
- *One sum.* The noised integers of a round and roster are the same in every attempt. So the difference of two sums over
  different sets would reveal integers of some sites. Before a site reveals its shares, it permanently records the set
  of senders for this round and roster (`Memory`). The site never helps to open another set. To open two sets,
  ``2 (t - C)`` honest sites would again be needed. So even if messages are repeated, late or replayed, server and
  colluders learn one sum of these integers, with H unknown shares of noise: one release. A smaller roster has separate
  noise and a separate charge.

A message of a wrong type, length, context or signature is refused. The refusal is one line that reveals none of the
content, and a refused message changes nothing. The masks hide the integers if X25519, HKDF, ChaCha20 and Ed25519 are
secure. A site that sends a false sum falsifies the total, as in any such protocol. If a share is false, the opening is
refused, and no wrong total is computed.

A site keeps the secrets of an attempt only in memory. If its process ends, the site can take part in the next attempt,
which costs no budget.

References
----------
Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth (2017), Practical secure aggregation for
privacy-preserving machine learning: the protocol of figure 4, with signed keys and the consistency check.
"""
