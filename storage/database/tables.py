"""Definitions of the SQL tables of the ledger, the catalog of datasets and the registry index."""

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
    sa.Column("rows_per_unit", sa.BigInteger),  # maximum number of rows of one individual; NULL means no bound
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
    sa.Column("rows_digest", Text),  # digest of the snapshot's rows without the ids of individuals
    sa.Column("unit", Text, nullable=False, default=ROW),
    # maximum number of rows of one individual; NULL means no bound
    sa.Column("rows_per_unit", sa.BigInteger, default=1),
    sa.Column("created_at", Text, nullable=False),
    sa.Column("removed_at", Text),
    sa.Column("seq", sa.BigInteger),  # number of the journal entry that registered the snapshot
    sa.Column("number", sa.BigInteger, index=True, unique=True),  # number of the ingest that made the snapshot
    sa.Column("epoch", Text),  # id of the table of first-seen ids (arrival_epoch) for this snapshot, or NULL
)
# table `arrival_epoch`: each row stands for one table of the ids that ingests have seen, hashed under one key
arrival_epoch = sa.Table(
    "arrival_epoch",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("population", Text, nullable=False, index=True),
    sa.Column("created_at", Text, nullable=False),
    sa.Column("lost_at", Text),
)
# table `arrival_segment`: the ids that first appeared in one ingest; `number` is NULL while their files are being
# written
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
# table `charged_total`: cached sum of a population's charges; if its row is missing, the sum is computed again
charged_total = sa.Table(
    "charged_total",
    metadata,
    sa.Column("population", Text, sa.ForeignKey("budget.population"), primary_key=True),
    sa.Column("charge", Text, nullable=False),  # the charge is stored as JSON, because its integers may exceed 64 bits
    sa.Column("accounting", Text, nullable=False),
    sa.Column("releases", sa.BigInteger, nullable=False),  # number of releases, including abandoned ones
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
joint_version = sa.Table(  # table `joint_version`: a published version of a joint release of several sites
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
# table `stream`: a release repeated at every tick (date) of a schedule, and charged once in advance
stream = sa.Table(
    "stream",
    metadata,
    sa.Column("id", Text, sa.ForeignKey("release.id"), primary_key=True),  # id of the release that opened the stream
    sa.Column("name", Text, nullable=False, index=True),
    sa.Column("population", Text, nullable=False),
    sa.Column("fingerprint", Text, nullable=False),
    sa.Column("terms", Text, nullable=False),
    sa.Column("created_at", Text, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),  # number of the journal entry about the opening of the stream
)
# table `stream_charge`: releases that pay for ticks (versions) of a stream; `ticks` counts all ticks paid for so far
stream_charge = sa.Table(
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
    sa.Column("number", sa.BigInteger, nullable=False),  # number of the ingest that made the tick's snapshot
    sa.Column("arrivals", Text, nullable=False),
    sa.UniqueConstraint("stream", "slot"),
)
tick_answer = sa.Table(  # table `tick_answer`: digest of the noised answer of a stream's tick (a file)
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
# table `pointer`: published names whose pointer file is up to date; the file of any other name must be rewritten
pointer = sa.Table(
    "pointer",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("tag", Text, nullable=False),  # the store's tag (ETag) of the pointer file when it was last written
)
# table `signed_pointer`: number and file tag of each name's last signed pointer file; numbers only grow
signed_pointer = sa.Table(
    "signed_pointer",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("tag", Text),
)
published = sa.union_all(  # all published versions, each with the id of its release or joint release
    sa.select(version.c.name, version.c.version, version.c.digest, version.c.release_id.label("origin")),
    sa.select(joint_version.c.name, joint_version.c.version, joint_version.c.digest, joint_version.c.joint_id),
).subquery("published")
