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
    sa.Column("rows_per_unit", sa.BigInteger),  # most rows of one individual; NULL means no bound
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
    sa.Column("rows_digest", Text),  # digest of the rows without the ids of individuals
    sa.Column("unit", Text, nullable=False, default=ROW),
    sa.Column("rows_per_unit", sa.BigInteger, default=1),  # most rows of one individual; NULL means no bound
    sa.Column("created_at", Text, nullable=False),
    sa.Column("removed_at", Text),
    sa.Column("seq", sa.BigInteger),  # number of the journal entry that registered the snapshot
    sa.Column("number", sa.BigInteger, index=True, unique=True),  # number of the ingest that made the snapshot
    sa.Column("epoch", Text),  # epoch (row of arrival_epoch) of the snapshot's first-seen numbers, or NULL
)
# one table of the ids that ingests have seen, hashed under one key; a lost part ends the epoch
arrival_epoch = sa.Table(
    "arrival_epoch",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("population", Text, nullable=False, index=True),
    sa.Column("created_at", Text, nullable=False),
    sa.Column("lost_at", Text),
)
# the ids that first appeared in one ingest; number is NULL while the files are being written
arrival_segment = sa.Table(
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
    sa.Column("seq", sa.BigInteger),  # number of the journal entry that reserved the release
)
# cached sum of a population's charges; if the row is missing, the charges of the releases are added up again
charged_total = sa.Table(
    "charged_total",
    metadata,
    sa.Column("population", Text, sa.ForeignKey("budget.population"), primary_key=True),
    sa.Column("charge", Text, nullable=False),  # JSON, because its integers may exceed 64 bits
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
joint_version = sa.Table(  # a published version of a joint release of several sites; each site's own ledger is charged
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
# a stream: one Gaussian release, charged in advance; its ticks (periodic releases) cost nothing more
stream = sa.Table(
    "stream",
    metadata,
    sa.Column("id", Text, sa.ForeignKey("release.id"), primary_key=True),  # id of the release that opened the stream
    sa.Column("name", Text, nullable=False, index=True),
    sa.Column("population", Text, nullable=False),
    sa.Column("fingerprint", Text, nullable=False),
    sa.Column("terms", Text, nullable=False),
    sa.Column("created_at", Text, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),  # number of the journal entry that opened the stream
)
stream_charge = sa.Table(  # a release charged for a stream; after this charge, the given number of ticks is paid for
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
    sa.Column("number", sa.BigInteger, nullable=False),  # number of the ingest of the snapshot
    sa.Column("arrivals", Text, nullable=False),
    sa.UniqueConstraint("stream", "slot"),
)
tick_answer = sa.Table(  # digest of a tick's noised answer, which is a file in the store
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
pointer = sa.Table(  # names whose pointer file agrees with the rows; without a row here, the file must be rewritten
    "pointer",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("tag", Text, nullable=False),  # the store's tag (ETag) of the file as last written
)
signed_pointer = sa.Table(  # number of each name's last signed pointer, which only grows, and the tag of its file
    "signed_pointer",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("tag", Text),
)
published = sa.union_all(  # all published versions, with the id of the release or joint release that made each
    sa.select(version.c.name, version.c.version, version.c.digest, version.c.release_id.label("origin")),
    sa.select(joint_version.c.name, joint_version.c.version, joint_version.c.digest, joint_version.c.joint_id),
).subquery("published")
