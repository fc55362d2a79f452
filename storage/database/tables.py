"""Tables of the ledger, the catalog and the registry index."""

import sqlalchemy as sa

from dpca.privacy_unit import ROW

metadata = sa.MetaData()
Text = sa.Text

ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("created_at", Text, nullable=False),
)
budget = sa.Table(
    "budget",
    metadata,
    sa.Column("population", Text, primary_key=True),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("delta", sa.Double, nullable=False),
    sa.Column("failure_delta", sa.Double, nullable=False, default=0.0),
    sa.Column("relation", Text, nullable=False),
    sa.Column("filter", Text, nullable=False),
    sa.Column("unit", Text, nullable=False),
    sa.Column("rows_per_unit", sa.BigInteger),  # maximum; NULL is no bound
    sa.Column("created_at", Text, nullable=False),
)
snapshot = sa.Table(
    "snapshot",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("name", Text, nullable=False, index=True),
    sa.Column("population", Text, nullable=False),
    sa.Column("n_features", sa.BigInteger, nullable=False),
    sa.Column("records_at_most", sa.BigInteger),
    sa.Column("path", Text, nullable=False),
    sa.Column("content_digest", Text, nullable=False),
    sa.Column("rows_digest", Text),  # digest of the rows without their ids
    sa.Column("unit", Text, nullable=False, default=ROW),
    sa.Column("rows_per_unit", sa.BigInteger, default=1),  # maximum; NULL is no bound
    sa.Column("created_at", Text, nullable=False),
    sa.Column("removed_at", Text),
    sa.Column("seq", sa.BigInteger),  # number of the journal entry that registered it
    sa.Column("number", sa.BigInteger, index=True, unique=True),  # number of the ingest
    sa.Column("epoch", Text),  # arrival epoch of the first-seen numbers of its blocks, if they have any
)
arrival_epoch = sa.Table(  # a table of first-seen ids under one key, until a part of the table is lost
    "arrival_epoch",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("population", Text, nullable=False, index=True),
    sa.Column("created_at", Text, nullable=False),
    sa.Column("lost_at", Text),
)
arrival_segment = sa.Table(  # the ids that first appeared in one ingest; no number while its files are being written
    "arrival_segment",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("epoch", Text, sa.ForeignKey("arrival_epoch.id"), nullable=False, index=True),
    sa.Column("number", sa.BigInteger, unique=True),
    sa.Column("digest", Text),
)
release = sa.Table(
    "release",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("population", Text, sa.ForeignKey("budget.population"), nullable=False, index=True),
    sa.Column("snapshot_id", Text, nullable=False),
    sa.Column("run_key", Text, nullable=False, unique=True),
    sa.Column("fingerprint", Text, nullable=False),
    sa.Column("request", Text, nullable=False),
    sa.Column("event", Text, nullable=False),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("delta", sa.Double, nullable=False),
    sa.Column("charge", sa.LargeBinary, nullable=False),
    sa.Column("accounting", Text, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("artifact_digest", Text),
    sa.Column("created_at", Text, nullable=False),
    sa.Column("updated_at", Text, nullable=False),
    sa.Column("seq", sa.BigInteger),  # number of the journal entry that reserved it
)
charged_total = sa.Table(  # cached total charge of a population's releases; without a row the charges are added up
    "charged_total",
    metadata,
    sa.Column("population", Text, sa.ForeignKey("budget.population"), primary_key=True),
    sa.Column("charge", Text, nullable=False),  # JSON: numbers of any size
    sa.Column("accounting", Text, nullable=False),
    sa.Column("releases", sa.BigInteger, nullable=False),  # including abandoned ones
)
step = sa.Table(
    "step",
    metadata,
    sa.Column("release_id", Text, sa.ForeignKey("release.id"), primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True),
    sa.Column("digest", Text, nullable=False),
)
event = sa.Table(
    "event",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("population", Text),
    sa.Column("release_id", Text),
    sa.Column("name", Text, nullable=False),
    sa.Column("detail", Text, nullable=False),
    sa.Column("at", Text, nullable=False),
    sa.Column("actor", Text, nullable=False),
    sa.Column("prev_hash", Text, nullable=False),
    sa.Column("hash", Text, nullable=False),
    sa.Index("ix_event_name", "name", "population", "seq"),
    sa.Index("ix_event_release_id", "release_id", "name"),
)
version = sa.Table(
    "version",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("digest", Text, nullable=False, index=True),
    sa.Column("release_id", Text, sa.ForeignKey("release.id"), nullable=False, index=True),
    sa.Column("created_at", Text, nullable=False),
    sa.UniqueConstraint("name", "release_id"),
)
joint_version = sa.Table(  # a version of a joint release, which is charged in the ledgers of its sites
    "joint_version",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("digest", Text, nullable=False, index=True),
    sa.Column("joint_id", Text, nullable=False, index=True),
    sa.Column("sites", Text, nullable=False),
    sa.Column("created_at", Text, nullable=False),
    sa.UniqueConstraint("name", "joint_id"),
)
stream = sa.Table(  # one Gaussian release, charged in advance, whose ticks are releases at no further charge
    "stream",
    metadata,
    sa.Column("id", Text, sa.ForeignKey("release.id"), primary_key=True),  # id of the release that opened it
    sa.Column("name", Text, nullable=False, index=True),
    sa.Column("population", Text, nullable=False),
    sa.Column("fingerprint", Text, nullable=False),
    sa.Column("terms", Text, nullable=False),
    sa.Column("created_at", Text, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),  # number of the journal entry that opened it
)
stream_charge = sa.Table(  # a release that is charged for a stream, and the number of ticks paid for up to it
    "stream_charge",
    metadata,
    sa.Column("stream", Text, sa.ForeignKey("stream.id"), primary_key=True),
    sa.Column("ticks", sa.Integer, primary_key=True),
    sa.Column("release_id", Text, sa.ForeignKey("release.id"), nullable=False, unique=True),
)
tick = sa.Table(
    "tick",
    metadata,
    sa.Column("stream", Text, sa.ForeignKey("stream.id"), primary_key=True),
    sa.Column("tick", sa.Integer, primary_key=True),
    sa.Column("slot", Text, nullable=False),
    sa.Column("release_id", Text, sa.ForeignKey("release.id"), nullable=False, unique=True),
    sa.Column("snapshot_id", Text, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),  # number of the ingest
    sa.Column("arrivals", Text, nullable=False),
    sa.UniqueConstraint("stream", "slot"),
)
tick_answer = sa.Table(  # the copy of a tick's answer in the stream's store
    "tick_answer",
    metadata,
    sa.Column("stream", Text, primary_key=True),
    sa.Column("tick", sa.Integer, primary_key=True),
    sa.Column("digest", Text, nullable=False),
    sa.ForeignKeyConstraint(["stream", "tick"], ["tick.stream", "tick.tick"]),
)
alias = sa.Table(
    "alias",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("alias", Text, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)
pointer = sa.Table(  # pointer files that agree with the rows; the file of a name without a row must be written
    "pointer",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("tag", Text, nullable=False),  # tag of the last written file
)
signed_pointer = sa.Table(  # the signed pointer of each name: its number, which only grows, and the tag of its file
    "signed_pointer",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("tag", Text),
)
published = sa.union_all(  # every version, with the release or joint release that it comes from
    sa.select(version.c.name, version.c.version, version.c.digest, version.c.release_id.label("origin")),
    sa.select(joint_version.c.name, joint_version.c.version, joint_version.c.digest, joint_version.c.joint_id),
).subquery("published")
