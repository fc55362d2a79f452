"""Records of the ledger as plain JSON values, and back."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from storage.datasets.catalog import Entry
from storage.errors import BudgetExhausted
from storage.ledger.balance import Quote, Statement
from storage.ledger.budgets import Budget
from storage.ledger.releases import Release


def facts_of_release(release: Release) -> dict[str, Any]:
    """Return a release as JSON values."""
    return {**asdict(release), "charge": release.charge.hex()}


def release_of(facts: Mapping[str, Any]) -> Release:
    """Return the release of such values."""
    return Release(**{**facts, "charge": bytes.fromhex(facts["charge"])})


def facts_of_statement(statement: Statement) -> dict[str, Any]:
    """Return a statement as JSON values."""
    releases = [facts_of_release(release) for release in statement.releases]
    return {
        **{"budget": asdict(statement.budget), "spent": statement.spent, "remaining": statement.remaining},
        **{"releases": releases, "earlier": statement.earlier, "published": dict(statement.published)},
        "left": dict(statement.left),
    }


def statement_of(facts: Mapping[str, Any]) -> Statement:
    """Return the statement of such values."""
    return Statement(
        budget=Budget(**facts["budget"]),
        spent=facts["spent"],
        remaining=facts["remaining"],
        releases=tuple(release_of(release) for release in facts["releases"]),
        earlier=facts["earlier"],
        published={digest: tuple(versions) for digest, versions in facts["published"].items()},
        left=facts["left"],
    )


def facts_of_quote(quote: Quote) -> dict[str, Any]:
    """Return a quote as JSON values."""
    refusal = None if quote.refusal is None else str(quote.refusal)
    return {"spent": quote.spent, "total": list(quote.total), "refusal": refusal}


def quote_of(facts: Mapping[str, Any]) -> Quote:
    """Return the quote of such values."""
    refusal = None if facts["refusal"] is None else BudgetExhausted(facts["refusal"])
    return Quote(spent=facts["spent"], total=tuple(facts["total"]), refusal=refusal)


def facts_of_entry(entry: Entry) -> dict[str, Any]:
    """Return a snapshot of the catalog as JSON values."""
    return asdict(entry)


def entry_of(facts: Mapping[str, Any]) -> Entry:
    """Return the snapshot of such values."""
    return Entry(**facts)
