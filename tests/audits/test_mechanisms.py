"""Every shipped mechanism keeps its claim under attack, by an audit that would notice if it did not.

Keys come from a fixed seed, so a run of these tests draws nothing new. Over all seeds, a mechanism with exactly the
noise it claims would fail a row with probability at most 5 % (the confidence of its bound), and by the distance of
the bounds below from the claim, far less often.

Power: each bound must also reach a part of the claim, stated in the table, so an audit which lost its eyes fails here.
Over seeds, exact Gaussian noise at a claim of (1, 0.1) is bounded by 0.73 in the median of 4000 trials, and by less
than 0.55 in one case of 100. ``make test`` makes a sixteenth of the trials, in one relation; what so few can see, its
planted bugs show.
"""

import dataclasses

import pytest

from dpca_tasks.audit.neighbours import worst_neighbours
from dpca_tasks.audit.subspace import audited_problem, build_audited
from dpca_tasks.audit.trials import audit_mechanism
from dpca_tasks.errors import InvalidInput, Refused
from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.mechanisms.subspace.dp_spca import DpSpca
from tests.mechanism_table import FORMS, RELATIONS, TABLE


def asked(relation, **facts):
    return dataclasses.replace(audited_problem(relation), **facts)


def test_every_registered_mechanism_has_a_row():
    assert set(TABLE) == set(MECHANISMS)
    assert {name: build_audited(name) for name in TABLE} == {name: row.audited for name, row in TABLE.items()}


@pytest.mark.parametrize("name", TABLE | FORMS)
def test_the_claim_stands_under_a_sixteenth_of_the_trials(attack, name):
    row = (TABLE | FORMS)[name]
    problem = asked(row.relation, n_features=row.n_features)
    assert attack(row.audited, relation=row.relation, problem=problem, trials=row.trials // 16).passed


@pytest.mark.audit_only
@pytest.mark.parametrize(
    ("name", "relation"), [(name, relation) for name, row in TABLE.items() for relation in row.relations]
)
def test_the_claim_stands_and_the_attack_comes_near_it(attack, name, relation):
    row = TABLE[name]
    problem = asked(relation, n_features=row.n_features)
    finding = attack(row.audited, relation=relation, problem=problem, trials=row.trials, confidence=0.95)
    assert finding.passed
    assert finding.bound >= row.reach[row.relations.index(relation)]
    assert finding.delta == (0.0 if row.pure and not row.uses_delta else 0.1)


@pytest.mark.parametrize(
    ("name", "relation"),
    [(name, relation) for name, row in TABLE.items() for relation in RELATIONS if relation not in row.relations],
)
def test_a_relation_without_a_claim_is_not_audited(name, relation):
    with pytest.raises(Refused, match=relation):
        audit_mechanism(TABLE[name].audited, relation=relation)


@pytest.mark.audit_only
def test_the_attack_comes_near_the_claim_at_a_smaller_delta(attack):
    """At (1, 1e-3) the best event has probability 0.003 on one side; 8,000 trials see a third or more."""
    target = PrivacyTarget(epsilon=1.0, delta=1e-3, allow_large_delta=True)
    row = TABLE["analyze_gauss"]
    pairs = worst_neighbours("replace_one", n_features=2, clip_norm=1.0)[:1]
    finding = attack(row.audited, relation="replace_one", pairs=pairs, target=target, trials=8000)
    assert target.epsilon / 3 <= finding.bound <= target.epsilon


@pytest.mark.audit_only
@pytest.mark.parametrize(("records", "reach"), [(1, 0.2), (2, 0.0)], ids=["whole", "sampled"])
def test_the_fused_form_of_dp_spca_keeps_its_claim(attack, records, reach):
    """With one record at most, its one step is a plain Gaussian release, and the attack sees as much of it."""
    mechanism = DpSpca(n_components=1, form="one_row", integrated_time=2.0)
    pairs = worst_neighbours("add_remove", n_features=2, clip_norm=1.0)[:1]
    problem = asked("add_remove", records_at_most=records)
    finding = attack(mechanism, relation="add_remove", pairs=pairs, problem=problem, trials=1500)
    assert finding.passed
    assert finding.bound >= reach


@pytest.mark.audit_only
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", FORMS)
def test_another_form_keeps_the_claim_too(attack, name, relation):
    """A thousand trials bound exact Gaussian noise by 0.55 in the median."""
    finding = attack(FORMS[name].audited, relation=relation, trials=1000)
    assert finding.passed
    assert finding.bound >= 0.25


def test_the_same_seed_finds_the_same():
    row = TABLE["analyze_gauss"]
    once, again, other = (
        audit_mechanism(row.audited, relation="add_remove", trials=200, seed=seed) for seed in (3, 3, 4)
    )
    assert once == again
    assert once != other


ALONE = asked("add_remove", n_features=1)


@pytest.mark.parametrize("settings", [{"trials": 1}, {"confidence": 1.0}, {"problem": ALONE}])
def test_an_audit_that_can_show_nothing_is_refused(settings):
    with pytest.raises(InvalidInput):
        audit_mechanism(TABLE["analyze_gauss"].audited, **{"relation": "add_remove", **settings})


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(InvalidInput, match="unknown"):
        build_audited("sulq")
